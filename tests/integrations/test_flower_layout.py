"""Apps of other frameworks: their arrays, laid out as a network of torch, are audited like torch's own."""

import layout_app as app
import numpy as np
import pytest

from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.run import audit
from glasshouse.errors import BadValue
from glasshouse.integrations.flower import Layout, capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.scenario.load import load
from glasshouse.transcript.files import read_transcript

MINE = """
name = "mine"

[data]
source = "digits"
auxiliary = 200
auxiliary_split = "train"
heldout = 50
heldout_split = "train"

[audit]
metrics = ["label_accuracy"]
controls = false
utility = false

[[attacks]]
name = "label_inference"
"""


def run(folder, layout):
    mod = truth_mod(folder / "client", layout=layout)
    grid = InProcessGrid(apps={50 + i: app.client(mods=[mod]) for i in range(4)})
    terms = {"batch_size": app.BATCH, "local_epochs": 1}
    model = (app.Net, (1, 8, 8), 10)
    run_in_process(capture(app.server(), folder / "run", model=model, terms=terms, layout=layout), grid)
    return read_transcript(folder / "run" / "transcript", trust_factory=True)


def test_kernels_that_end_with_their_outputs_are_turned(tmp_path):
    seen = run(tmp_path, app.LAYOUT)
    sent = seen.rounds[0].broadcasts[0].tensors
    bias, kernel, _, _ = app.begin()
    assert np.array_equal(sent["hidden.weight"].numpy(), kernel.T)
    assert np.array_equal(sent["hidden.bias"].numpy(), bias)


def test_its_training_is_repeated_and_its_labels_are_read(tmp_path):
    run(tmp_path, app.LAYOUT)
    collect(tmp_path / "run", [tmp_path / "client"])
    (tmp_path / "mine.toml").write_text(MINE)
    suite = load(str(tmp_path / "mine.toml"), (), captured=captured_tables(tmp_path / "run"))
    result = audit(suite, out=tmp_path / "out", jobs=1)
    (finding,) = result.findings
    assert finding.n == 4
    assert finding.gain > 0.2
    notes = " ".join(result.threats[0].notes)
    assert "The declared training is the real one" in notes
    assert "4 updates of test clients" in notes


def test_without_a_layout_the_arrays_are_another_models(tmp_path):
    with pytest.raises(BadValue, match="tensors for a"):
        run(tmp_path, None)


def test_an_array_that_the_layout_does_not_name_is_refused():
    with pytest.raises(BadValue, match="name every array that travels"):
        Layout(names=("out.bias",))({"0": None, "1": None})
