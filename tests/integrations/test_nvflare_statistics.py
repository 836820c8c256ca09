"""FLARE's statistics, as the server of a captured job receives them: a site's document is all it said."""

import numpy as np
import pytest

pytest.importorskip("nvflare")

import document_apps as apps
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.statistics_spec import Bin, Histogram, HistogramType
from nvflare.app_common.statistics.statisitcs_objects_decomposer import fobs_registration
from nvflare.fuel.utils import fobs
from test_flower_documents import audited
from test_nvflare_capture import context, message
from test_nvflare_trees import Recipe

from glasshouse.audit.captured.collect import collect
from glasshouse.errors import BadValue
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.integrations.documents import Documents, Parts
from glasshouse.integrations.nvflare import capture
from glasshouse.integrations.nvflare.statistics import stated_in
from glasshouse.integrations.nvflare.truth import recorded
from glasshouse.integrations.watching import used
from glasshouse.modalities.row import Column, Row
from glasshouse.transcript.files import read_transcript

TASK = "fed_stats"
NAMES = [column.name for column in apps.cancer_table().columns]
SENDS = Documents(table=apps.cancer_table(), protocol="statistics")


def answer(number, told):
    """A site's answer in FLARE's own encoding."""
    fobs_registration()
    key = f"fed_stats_{number}_statistics"
    return message({"fed_stats_task_key": key, key: fobs.dumps(told)}, DataKind.STATISTICS)


def passes(rows):
    """What FLARE's executor answers of these rows, rounded to four decimals, its extremes blurred."""
    values = dict(zip(NAMES, rows.astype(float).T, strict=True))
    first = {
        "count": {"train": {name: len(v) for name, v in values.items()}},
        "sum": {"train": {name: round(float(v.sum()), 4) for name, v in values.items()}},
        "max": {"train": {name: round(float(1.2 * v.max()), 4) for name, v in values.items()}},
    }
    # The last bin holds its own end, below that of the schema.
    counts, ends = np.histogram(values[NAMES[0]], bins=4, range=(0, values[NAMES[0]].max()))
    bins = [Bin(*map(float, (low, high, n))) for n, low, high in zip(counts, ends, ends[1:], strict=False)]
    second = {
        "var": {"train": {name: float(v.var()) for name, v in values.items()}},
        "histogram": {"train": {NAMES[0]: Histogram(HistogramType.STANDARD, bins)}},
    }
    return first, second


def test_two_passes_are_read_as_one_document_and_scored(tmp_path):
    recipe = Recipe()
    capture(recipe, tmp_path / "run", model=SENDS, tasks=(TASK,))
    tasks, results = recipe.filters
    rows, labels = apps.cancer()
    own = [slice(apps.ROWS * site, apps.ROWS * (site + 1)) for site in (0, 1)]
    for number, word in enumerate(("1st", "2nd")):
        for site in (0, 1):
            tasks.process(Shareable({"fed_stats_task_key": word}), context(f"site-{site + 1}", TASK))
        for site in (1, 0):
            told = passes(rows[own[site]])[number]
            results.process(answer(word, told), context(f"site-{site + 1}", TASK))
            with recorded(tmp_path / "client", site=f"site-{site + 1}", round=number):
                used(rows[own[site]], labels[own[site]])
    tasks._book().close()
    collect(tmp_path / "run", [tmp_path / "client"])
    seen = read_transcript(tmp_path / "run" / "transcript")
    assert dict(seen.terms.options) == {"digits": 4, "filters": True}
    documents = [
        [read_document(bytes_of(update.tensors[NAME]))[1] for update in record.updates]
        for record in seen.rounds
    ]
    kinds = [{number.name for number in document.numbers} for document in (*documents[0], *documents[1])]
    assert kinds == [{"count", "sum", "maximum"}] * 2 + [{"count", "sum", "maximum", "bin"}] * 2
    result = audited(
        tmp_path, ("stated_numbers",), source=f"table:{apps.write_cancer(tmp_path)}", auxiliary=200,
        metrics='["facts"]', rounds="[1]",
    )  # fmt: skip
    (finding,) = result.findings
    assert (finding.value, finding.n) == (1.0, 2)  # blurred extremes are no facts
    assert finding.gain > 0.8


def test_numpys_counts_are_numbers_too():
    told = {"fed_stats_1st_statistics": {"count": {"train": {"age": np.int64(7)}}}}
    (number,) = stated_in(DXO(DataKind.STATISTICS, data=told), told)["train"]
    assert (number.name, number.value, number.column) == ("count", 7.0, "age")


@pytest.mark.parametrize(
    "told",
    [{"histogram": {"train": {"age": 3}}}, {"histogram": {"train": {"age": Histogram(0, [(1.0, "a", 2)])}}},
     {"sum": {"train": {"age": float("nan")}}}, {"sum": {"train": 4}}, {"sum": [1]}, 7,
     {"count": {"train": {"age": "many"}}}],
)  # fmt: skip
def test_what_a_site_lays_out_otherwise_is_passed_over(told):
    """The gate and the capture read every message so: none may end them."""
    assert stated_in(DXO(DataKind.STATISTICS, data={"x": told}), {"x": told}) == {}


def test_one_of_several_data_sets_is_chosen():
    told = {"train": (1,), "test": (2,)}
    with pytest.raises(BadValue, match="data_set='train'"):
        SENDS.numbers_of(told)
    chosen = Documents(table=apps.cancer_table(), protocol="statistics", data_set="test")
    assert chosen.numbers_of(told) == (2,)
    assert SENDS.numbers_of({"train": (1,)}) == (1,)


@pytest.mark.parametrize(("missing", "said"), [(True, ["age"]), (False, ["", "age"])])
def test_a_count_of_a_column_with_gaps_is_not_the_rows(missing, said):
    age = Column(name="age", kind="continuous", high=100, missing=missing)
    sends = Documents(table=Row(columns=(age,)), protocol="statistics")
    document, _ = sends.document(Parts(values={"age_count": 7}))
    numbers = read_document(document)[1].numbers
    assert [number.column for number in numbers] == said
