"""Captures of Flower apps that send no network: every message is read, and an audit scores what it says."""

import functools
import re

import document_apps as apps
import numpy as np
import pytest

from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.run import audit
from glasshouse.errors import BadValue
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.integrations.documents import Parts
from glasshouse.integrations.flower import Documents, capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.modalities.row import Column, Row
from glasshouse.scenario.load import load
from glasshouse.transcript.files import read_transcript
from glasshouse.truth.record import read_truth

COHORT_TIMES = Documents(table=apps.COHORT, protocol="survival", options={"column": "time"})
COUNTS = Documents(
    table=apps.COHORT, protocol="statistics", edges={"time": apps.BINS}, meaning={"avg": "sum"}
)
MINE = """
name = "mine"

[data]
source = "{source}"
auxiliary = {auxiliary}
auxiliary_split = "train"
heldout = 30
heldout_split = "train"

[grants]
auxiliary = true

[audit]
metrics = {metrics}
rounds = {rounds}
controls = false
utility = false

"""


def run(folder, client, server, sends, nodes=4, recorded=3, config=None, count=False):
    """Capture a run of clients of which the first ones record what their answers are about."""
    test, plain = client(mods=[truth_mod(folder / "client", count=count)]), client()
    grid = InProcessGrid(
        apps={100 + i: test if i < recorded else plain for i in range(nodes)}, run_config=config or {}
    )
    run_in_process(capture(server, folder / "run", model=sends), grid)
    if recorded:
        collect(folder / "run", [folder / "client"])
    return read_transcript(folder / "run" / "transcript")


def audited(folder, attacks, **settings):
    lines = "".join(f'[[attacks]]\nname = "{name}"\n\n' for name in attacks)
    (folder / "mine.toml").write_text(MINE.format(**settings) + lines)
    suite = load(str(folder / "mine.toml"), (), captured=captured_tables(folder / "run"))
    return audit(suite, out=folder / "out", jobs=1)


def test_bagged_trees_of_an_unchanged_app_are_read(tmp_path):
    sends = Documents(table=apps.cancer_table(), protocol="xgb_bagging")
    seen = run(tmp_path, apps.boosting_client, apps.boosting_server(), sends, config=apps.PARAMS)
    options = {"eta": 0.1, "max_depth": 3, "trees": 1, "units": "raw", "rows": "unknown"}
    assert dict(seen.terms.options) == options
    assert [len(record.updates) for record in seen.rounds] == [4, 4]
    assert {update.examples for record in seen.rounds for update in record.updates} == {apps.ROWS}
    first, second = (record.received_by(None).tensors[NAME] for record in seen.rounds)
    assert not bytes_of(first)
    assert len(read_document(bytes_of(second))[1].trees) == 4
    stages = {metrics.stage for record in seen.rounds for metrics in record.metrics}
    assert stages == {"train", "evaluate"}
    source = f"table:{apps.write_cancer(tmp_path)}"
    result = audited(
        tmp_path, ("leaf_algebra", "cut_values"), source=source, auxiliary=200,
        metrics='["leaves_exact", "facts", "label_accuracy"]', rounds="[0]",
    )  # fmt: skip
    found = {(f.attack, f.metric): f for f in result.findings}
    assert found["leaf_algebra", "leaves_exact"].value == 1
    assert found["leaf_algebra", "facts"].value == 1
    assert found["cut_values", "facts"].value == 1
    assert found["cut_values", "facts"].n == 3


def test_only_the_first_turn_of_cyclic_training_is_one_clients_own(tmp_path):
    sends = Documents(table=apps.cancer_table(), protocol="xgb_cyclic")
    client = functools.partial(apps.boosting_client, cyclic=True)
    server = apps.boosting_server(3, cyclic=True)  # Flower draws whose turn is first
    seen = run(tmp_path, client, server, sends, recorded=4, config=apps.PARAMS)
    trees = [len(read_document(bytes_of(r.updates[0].tensors[NAME]))[1].trees) for r in seen.rounds]
    assert trees == [1, 2, 3]
    assert [len(record.updates) for record in seen.rounds] == [1, 1, 1]
    source = f"table:{apps.write_cancer(tmp_path)}"
    result = audited(
        tmp_path, ("leaf_algebra",), source=source, auxiliary=200, metrics='["leaves_exact"]', rounds="[0]"
    )
    assert [(f.value, f.n) for f in result.findings] == [(1.0, 1)]


def test_follow_up_times_that_answer_a_query_are_raw_and_said_to_be(tmp_path):
    seen = run(tmp_path, apps.follow_up_client, apps.asking_server(group=False), COHORT_TIMES)
    (record,) = seen.rounds
    assert len(record.updates) == 4
    assert {metrics.stage for metrics in record.metrics} == {"query"}
    assert all(metrics.values["num-examples"] == apps.ROWS for metrics in record.metrics)
    result = audited(
        tmp_path, ("follow_up",), source="cohort", auxiliary=300, metrics='["facts"]', rounds="[0]"
    )
    (finding,) = result.findings
    assert (finding.value, finding.n) == (1.0, 3)
    assert finding.gain > 0.8  # over as many facts from public rows
    (note,) = [n for n in result.threats[0].notes if n.startswith("Raw: ")]
    assert "4 clients sent time and outcome of every person, 240 people in all" in note


def test_whoever_joins_between_two_queries_is_read(tmp_path):
    client = functools.partial(apps.counting_client, joins=1)
    seen = run(tmp_path, client, apps.asking_server(rounds=2), COUNTS)
    assert [record.round for record in seen.rounds] == [0, 1]
    assert [{u.examples for u in record.updates} for record in seen.rounds] == [{56}, {57}]
    result = audited(
        tmp_path, ("stated_numbers",), source="cohort", auxiliary=300, metrics='["facts"]', rounds="[0]"
    )
    (finding,) = result.findings
    assert (finding.value, finding.n) == (1.0, 3)
    first, second = (read_document(bytes_of(r.updates[0].tensors[NAME]))[1] for r in seen.rounds)
    sums = [one.select(name="sum", column="age")[0].value for one in (first, second)]
    assert sums[1] - sums[0] == apps.patients(0)[0][56, 1]


def test_equal_rows_stay_as_many_people_as_they_are(tmp_path):
    table = Row(columns=(Column(name="time", kind="integer", high=2000),))
    sends = Documents(table=table, protocol="survival", options={"column": "time"})
    app = functools.partial(apps.follow_up_client, columns=1, coarse=365)
    run(tmp_path, app, apps.asking_server(rounds=2, group=False), sends)
    truth = read_truth(tmp_path / "run" / "truth")
    assert {len(one.rows()) for one in truth.used.values()} == {apps.ROWS}
    assert len(truth.private) == 3 * apps.ROWS  # the second query is about the same people
    assert len(truth.private.inputs.unique(dim=0)) < 10


@pytest.mark.parametrize(
    ("sends", "parts", "word"),
    [
        (COHORT_TIMES, Parts(arrays={"durations": np.ones(3)}), "name the two arrays"),
        (COHORT_TIMES, Parts(arrays={"T": np.ones(3), "E": np.ones(2)}), "of one length"),
        (COUNTS, Parts(values={"time": [1, 2, 3]}), "take them from the app's code: edges="),
        (COUNTS, Parts(values={"age_mean": 900.0, "age_count": 9}), "meaning={'mean': 'sum'}"),
        (
            Documents(table=apps.cancer_table(), protocol="xgb_bagging"),
            Parts(arrays={"coef": np.ones(3)}),
            "choose the protocol that the app speaks",
        ),
    ],
)
def test_what_is_no_such_document_is_refused_by_name(sends, parts, word):
    with pytest.raises(BadValue, match=re.escape(word)):
        sends.document(parts)


def test_a_client_that_sends_something_else_is_left_out_and_named(tmp_path):
    sends = Documents(table=apps.COHORT, protocol="survival", times="durations")
    seen = run(tmp_path, apps.follow_up_client, apps.asking_server(), sends, recorded=0)
    assert not seen.rounds[0].updates
    reasons = {dropout.reason for dropout in seen.rounds[0].dropouts}
    assert len(reasons) == 1
    assert "needs arrays 'durations' and 'E'" in reasons.pop()


def test_a_document_beyond_the_capacity_ends_no_federation(tmp_path):
    sends = Documents(table=apps.cancer_table(), protocol="xgb_bagging", capacity=1800)
    seen = run(tmp_path, apps.boosting_client, apps.boosting_server(2), sends, recorded=0)
    assert [len(record.updates) for record in seen.rounds] == [4, 4]  # the model of four trees does not fit
    assert [len(record.broadcasts) for record in seen.rounds] == [1, 0]


def test_a_protocol_that_no_reader_knows_is_refused():
    with pytest.raises(BadValue, match="protocol xgb_bagging, xgb_cyclic, newton, survival, statistics"):
        Documents(table=apps.COHORT, protocol="fedavg")


def test_an_app_that_counts_its_rounds_from_zero_keeps_them_apart(tmp_path):
    sends = Documents(table=apps.cancer_table(), protocol="xgb_bagging")
    server = apps.counting_from_zero(3)
    seen = run(tmp_path, apps.boosting_client, server, sends, recorded=0)
    assert [record.round for record in seen.rounds] == [0, 1, 2]
    assert [len(record.updates) for record in seen.rounds] == [4, 4, 4]


def test_trees_with_categories_are_read_and_their_tables_too(tmp_path):
    sends = Documents(table=apps.ward_table(), protocol="xgb_bagging")
    seen = run(tmp_path, apps.category_client, apps.configured_server(2), sends)
    assert [record.round for record in seen.rounds] == [0, 1]
    assert {update.examples for record in seen.rounds for update in record.updates} == {0}  # none is stated
    result = audited(
        tmp_path, ("leaf_algebra",), source=f"table:{apps.write_wards(tmp_path)}", auxiliary=100,
        metrics='["leaves_exact", "facts"]', rounds="[0]",
    )  # fmt: skip
    found = {f.metric: f for f in result.findings}
    assert found["leaves_exact"].value == 1
    assert (found["facts"].value, found["facts"].n) == (1, 1)  # all hold the same rows
    assert found["facts"].gain > 0.3
    assert not result.refusals


def test_a_document_that_nobody_can_read_is_named_and_the_others_are_audited(tmp_path):
    sends = Documents(table=apps.ward_table(), protocol="xgb_bagging")
    client = functools.partial(apps.category_client, broken=(1,))
    run(tmp_path, client, apps.configured_server(1), sends)
    result = audited(
        tmp_path, ("leaf_algebra",), source=f"table:{apps.write_wards(tmp_path)}", auxiliary=100,
        metrics='["leaves_exact"]', rounds="[0]",
    )  # fmt: skip
    assert [(f.value, f.n) for f in result.findings] == [(1.0, 1)]  # both others hold the same rows
    assert any("client 1" in note for note in result.threats[0].notes)


def test_embeddings_of_one_party_are_read_by_the_party_of_the_labels(tmp_path):
    values, died = apps.halves(0)
    known = values[: apps.ACQUAINTED].tolist(), died[: apps.ACQUAINTED].tolist()
    sends = Documents(table=apps.half_table(0), protocol="vertical", known=known, where={"pos": 0})
    seen = run(tmp_path, apps.embedding_client, apps.head_server(), sends, nodes=2, recorded=2)
    assert [record.round for record in seen.rounds] == [0, 1]
    assert [[u.examples for u in record.updates] for record in seen.rounds] == [[50], [50]]
    result = audited(
        tmp_path, ("embedding_regression",), metrics='["row_cells"]', rounds="[0]", auxiliary=250,
        source=f"table:{apps.write_columns(tmp_path, slice(1, 3))}",
    )  # fmt: skip
    (finding,) = result.findings
    assert finding.n == 1
    assert finding.value > 0.8
    assert finding.gain > 0.2


def test_labels_are_read_off_the_gradients_that_a_server_sends(tmp_path):
    values, died = apps.halves(0)
    known = values[: apps.ACQUAINTED, :1].tolist(), died[: apps.ACQUAINTED].tolist()
    table = Row(columns=apps.COHORT.columns[1:2])
    sends = Documents(table=table, protocol="vertical", known=known, options={"reads": "gradients"})
    client = functools.partial(apps.embedding_client, tells=False)
    seen = run(tmp_path, client, apps.head_server(), sends, nodes=2, recorded=2, count=True)
    assert [len(record.updates) for record in seen.rounds] == [2, 2]
    result = audited(
        tmp_path, ("gradient_direction",), metrics='["row_labels_right"]', rounds="[0]", auxiliary=250,
        source=f"table:{apps.write_columns(tmp_path, slice(1, 2))}",
    )  # fmt: skip
    (finding,) = result.findings
    assert finding.value == 1
    assert finding.gain > 0.1
