"""FLARE's jobs of boosted trees, whose sums are masked: captured as documents, audited, the mask judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("xgboost")

import document_apps as apps
import xgboost
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from test_flower_documents import audited

from glasshouse.audit.captured.collect import collect
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.integrations.documents import Documents
from glasshouse.integrations.nvflare import capture
from glasshouse.integrations.nvflare.truth import recorded
from glasshouse.integrations.watching import used
from glasshouse.transcript.files import read_transcript

JOB = Path(__file__).parent / "flare_trees"
SETTINGS = {"objective": "binary:logistic", "eta": 0.05, "max_depth": 3, "nthread": 1}


class Recipe:
    """What a capture asks of a recipe for trees, and the two filters that it adds."""

    max_depth, local_subsample, num_local_parallel_tree = 3, 1.0, 1
    learning_rate, lr_mode, training_mode, num_client_bagging = 0.1, "uniform", "bagging", 2

    def __init__(self):
        self.filters = []

    def add_server_output_filter(self, one, tasks):
        self.filters.append(one)

    add_server_input_filter = add_server_output_filter


def context(client):
    made, peer = FLContext(), FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, client, private=False)
    made.set_peer_context(peer)
    made.set_prop(FLContextKey.TASK_NAME, "train")
    return made


def message(data, number=None):
    made = DXO(data_kind=DataKind.WEIGHTS, data=data).to_shareable()
    if number is not None:
        made.set_header("current_round", number)
    return made


def boosted(number, common=None):
    """A site's new tree with FLARE's mask: ones in the place of sums of second derivatives."""
    rows, labels = apps.cancer()
    own = slice(apps.ROWS * number, apps.ROWS * (number + 1))
    before = None
    if common is not None:
        before = xgboost.Booster(SETTINGS)
        before.load_model(bytearray(common))
    whole = xgboost.train(SETTINGS, xgboost.DMatrix(rows[own], labels[own]), 1, xgb_model=before)
    saved = json.loads(whole[whole.num_boosted_rounds() - 1 :].save_raw("json"))
    for tree in saved["learner"]["gradient_booster"]["model"]["trees"]:
        tree["sum_hessian"] = [1.0] * len(tree["sum_hessian"])
    return bytearray(json.dumps(saved), "utf-8")


def test_masked_trees_are_captured_and_what_masks_do_not_hide_is_found(tmp_path):
    recipe = Recipe()
    sends = Documents(table=apps.cancer_table(), protocol="xgb_bagging")
    capture(recipe, tmp_path / "run", model=sends, tasks=("train",))
    tasks, results = recipe.filters
    first = [boosted(0), boosted(1)]
    rows, labels = apps.cancer()
    for number, sent in ((0, None), (1, first)):
        for site in (0, 1):
            data = {} if sent is None else {"model_data": [bytes(one) for one in sent]}
            tasks.process(message(data, number), context(f"site-{site + 1}"))
        for site in (0, 1):
            tree = first[site] if sent is None else boosted(site, bytes(first[site]))
            results.process(message({"model_data": tree}), context(f"site-{site + 1}"))
            own = slice(apps.ROWS * site, apps.ROWS * (site + 1))
            with recorded(tmp_path / "client", site=f"site-{site + 1}", round=number):
                used(rows[own], labels[own])
    tasks._book().close()
    seen = read_transcript(tmp_path / "run" / "transcript")
    assert seen.terms.options["eta"] == 0.05  # FLARE divides the rate by the clients of a bagging
    sizes = [len(record.updates) for record in seen.rounds]
    assert sizes == [2, 2]
    broadcasts = [bytes_of(record.received_by(None).tensors[NAME]) for record in seen.rounds]
    assert not broadcasts[0]
    assert len(read_document(broadcasts[1])[1].trees) == 2
    collect(tmp_path / "run", [tmp_path / "client"])
    result = audited(
        tmp_path, ("cut_values", "leaf_algebra"), source=f"table:{apps.write_cancer(tmp_path)}",
        auxiliary=200, metrics='["facts"]', rounds="[0]",
    )  # fmt: skip
    (finding,) = result.findings
    assert (finding.attack, finding.value, finding.n) == ("cut_values", 1.0, 2)
    assert {(r.subject, r.got) for r in result.refusals} == {
        ("attack 'leaf_algebra'", "a mask in their place (glasshouse defenses)")
    }
    (note,) = [n for n in result.threats[0].notes if "masked_sums" in n]
    assert "off at 2 clients" in note
    assert "drop both as well" in note


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "alone"), [("bagging", 3), ("cyclic", 1)])
def test_flares_own_job_of_trees_is_captured(tmp_path, mode, alone):
    pytest.importorskip("tensorboard")  # FLARE imports it before its recipes for trees
    here = Path(__file__).parent
    environment = {
        **os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(JOB), str(here), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, str(JOB / "job.py"), str(tmp_path), mode, "simulator"],
        check=True, timeout=400, env=environment, cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    truth = collect(tmp_path / "capture", [tmp_path / "truth"])
    seen = read_transcript(tmp_path / "capture" / "transcript")
    first, second = (len(record.updates) for record in seen.rounds)
    # A circle begins with whoever has joined: on a slow machine that may be one site.
    assert first == 3 or (mode == "cyclic" and first > 0)
    assert second == 3
    assert len(truth.private) == 3 * apps.ROWS
    (tmp_path / "run").symlink_to(tmp_path / "capture")
    result = audited(
        tmp_path, ("cut_values",), source=f"table:{apps.write_cancer(tmp_path)}", auxiliary=200,
        metrics='["facts"]', rounds="[0]",
    )  # fmt: skip
    assert [(f.value, f.n) for f in result.findings] == [(1.0, alone)]  # in a circle one is the first
