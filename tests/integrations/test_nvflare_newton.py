"""FLARE's logistic regression by Newton's method (hello-lr): sums of every site in clear, read and scored."""

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from test_flower_documents import audited
from test_nvflare_capture import context, message

from glasshouse.audit.captured.collect import collect
from glasshouse.errors import BadValue
from glasshouse.federation.protocols.documents.newton import sums_at
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.integrations.documents import Parts
from glasshouse.integrations.nvflare import Documents, capture, used
from glasshouse.integrations.nvflare.truth import recorded
from glasshouse.modalities.row import Column, Row
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Batch

TABLE = Row(
    columns=(
        Column(name="age", kind="continuous", low=-4, high=4, tolerance=0.01),
        Column(name="beats", kind="continuous", low=-6, high=10, tolerance=0.01),
        Column(name="sex", kind="binary", levels=("0", "1")),
    )
)
SIZES = (12, 20)
SCHEMA = """
confirmed = true
file = "public.csv"
column = [
    { name = "age", kind = "continuous", low = -4, high = 4, tolerance = 0.01 },
    { name = "beats", kind = "continuous", low = -6, high = 10, tolerance = 0.01 },
    { name = "sex", kind = "binary", levels = ["0", "1"] },
    { name = "ill", kind = "binary", role = "target", levels = ["0", "1"] },
]
"""


class Recipe:
    """As much of a recipe as a capture needs."""

    def __init__(self):
        self.filters = []

    def add_server_output_filter(self, added, tasks):
        self.filters.append(added)

    add_server_input_filter = add_server_output_filter


def rows_of(site):
    rng = np.random.default_rng(site)
    numbers = rng.normal(size=(SIZES[site], 2)).clip(-4, 4)
    rows = np.concatenate([numbers, rng.integers(0, 2, (SIZES[site], 1))], 1).astype(np.float32)
    return rows, rng.integers(0, 2, SIZES[site])


def step(rows, labels, theta):
    """What hello-lr's script sends: the sums over its numbers with a 1 before them."""
    x = np.concatenate([np.ones((len(rows), 1)), rows], 1)
    p = 1 / (1 + np.exp(-x @ theta))
    return {"gradient": x.T @ (labels[:, None] - p), "hessian": x.T @ np.diag((p * (1 - p))[:, 0]) @ x}


def run(folder):
    """Two rounds of two test sites."""
    recipe = Recipe()
    capture(recipe, folder / "run", model=Documents(table=TABLE, protocol="newton"), tasks=("train",))
    tasks, results = recipe.filters
    theta = np.zeros((4, 1))
    for number in range(2):
        for site in range(2):
            tasks.process(message({"numpy_key": theta}, round=number), context(f"site-{site + 1}"))
        answers = [step(*rows_of(site), theta) for site in range(2)]
        for site, answer in enumerate(answers):
            meta = {"NUM_STEPS_CURRENT_ROUND": SIZES[site]}
            results.process(message(answer, **meta), context(f"site-{site + 1}"))
            with recorded(folder / "client", site=f"site-{site + 1}", round=number):
                used(*map(torch.from_numpy, rows_of(site)))
        whole = [sum(answer[name] for answer in answers) for name in ("hessian", "gradient")]
        theta = theta + 0.8 * np.linalg.solve(*whole)
    tasks._book().close()
    collect(folder / "run", [folder / "client"])
    return read_transcript(folder / "run" / "transcript")


def test_sums_of_plain_numbers_are_those_of_the_encoded_rows(tmp_path):
    seen = run(tmp_path)
    assert [len(record.updates) for record in seen.rounds] == [2, 2]
    for record in seen.rounds:
        for update in record.updates:
            sent = read_document(bytes_of(update.tensors[NAME]))[1]
            rows, labels = rows_of(update.client)
            encoded = TABLE.encode(torch.from_numpy(rows).double())
            again = sums_at(sent.theta, Batch(inputs=encoded, labels=torch.from_numpy(labels)))
            assert np.allclose(sent.gradient, again.gradient, atol=1e-5)
            assert np.allclose(sent.hessian, again.hessian, atol=1e-5)
    assert sent.theta.any()


def test_counts_and_class_sums_of_a_site_are_read_and_scored(tmp_path):
    run(tmp_path)
    rng = np.random.default_rng(9)
    public = [
        f"{age:.3f},{beats:.3f},{rng.integers(2)},{rng.integers(2)}"
        for age, beats in rng.normal(size=(300, 2)).clip(-4, 4)
    ]
    (tmp_path / "public.csv").write_text("\n".join(["age,beats,sex,ill", *public]))
    (tmp_path / "public.schema.toml").write_text(SCHEMA)
    result = audited(
        tmp_path, ("newton_rows",), source=f"table:{tmp_path / 'public.schema.toml'}", auxiliary=100,
        metrics='["facts"]', rounds="[0]",
    )  # fmt: skip
    assert [(f.metric, f.value, f.n) for f in result.findings] == [("facts", 1.0, 2)]


def test_what_is_no_newton_step_is_named():
    sends = Documents(table=TABLE, protocol="newton")
    with pytest.raises(BadValue, match="4 coefficients, then 'gradient' and 'hessian'"):
        sends.document(Parts(arrays={"weights": np.zeros(7)}))
    ward = Column(name="ward", kind="categorical", levels=("a", "b", "c"))
    with pytest.raises(BadValue, match="columns of one number each"):
        Documents(table=Row(columns=(ward,)), protocol="newton").document(Parts())
