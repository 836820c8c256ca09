"""Apps of the shapes that people run are captured, repaired by test clients, and audited."""

import pytest
import real_apps
from real_apps import APPS, DIGITS, EXAMPLES, LETTERS

import glasshouse as gh
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.terms import TOLERANCE
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.tasks.classification import Classification
from glasshouse.transcript.files import read_transcript

NEEDS = {"huggingface": "transformers", "lora": "peft", "opacus": "opacus"}
OPTIMIZERS = {
    "pytorch": ("sgd", 0.01, 0.9), "huggingface": ("adamw", 5e-5, 0.0), "lightning": ("adam", 1e-3, 0.0),
    "monai": ("adam", 1e-3, 0.0), "mobilenet": ("sgd", 0.05, 0.0), "fedprox": ("sgd", 0.05, 0.0),
    "lstm": ("sgd", 0.1, 0.0), "fedbn": ("adam", 1e-3, 0.0), "lora": ("adamw", 5e-5, 0.0),
}  # fmt: skip


def model_of(app):
    factory = app.audited or app.network
    return (factory, LETTERS.inputs, Classification(classes=4)) if app.text else (factory, (1, 8, 8), 10)


def audited(place, app, out):
    """By what attacks = "auto" chooses within two seconds."""
    scenario = {
        "name": "real",
        "data": {"source": "sentences" if app.text else "digits", "auxiliary": 40, "heldout": 20},
        "audit": {"metrics": ["label_accuracy"], "controls": False, "budget": "2 s", "utility": False},
    }
    scenario["data"] |= {"auxiliary_split": "train", "heldout_split": "train"}
    return gh.audit(scenario, captured=place, out=out, jobs=1, register=False)


@pytest.fixture(params=APPS)
def run(request, tmp_path):
    app = APPS[request.param]
    if package := NEEDS.get(request.param):
        pytest.importorskip(package)
    clients = {10 + n: app.client(n, [truth_mod(tmp_path / "client")]) for n in range(2)}
    server = capture(
        app.server(), tmp_path / "run", model=model_of(app), normalize=app.normalize, terms=app.terms
    )
    run_in_process(server, InProcessGrid(apps=clients))
    collect(tmp_path / "run", [tmp_path / "client"])
    return request.param, app, tmp_path / "run"


def test_a_real_app_is_captured_repaired_and_audited(run, tmp_path):
    name, app, place = run
    found = gh.terms(place)
    if name == "opacus":
        assert "drawn at random" in found.checked.suspect or "no single term" in found.checked.suspect
        findings = audited(place, app, tmp_path / "out").findings
        assert {f.verdict for f in findings} <= {"no power", "not shown", "no leak found"}
        return
    kind, rate, momentum = OPTIMIZERS[name]
    stated = found.terms
    assert (stated.optimizer.name, stated.learning_rate) == (kind, pytest.approx(rate))
    assert stated.optimizer.momentum == momentum
    assert (stated.batch_size, stated.local_epochs) == (real_apps.BATCH, 2 if name == "pytorch" else 1)
    assert found.checked.n
    assert found.checked.error <= TOLERANCE, found.checked.suspect
    assert "label_inference" in found.runs
    rounds = read_transcript(place / "transcript", trust_factory=True).rounds
    assert {u.examples for r in rounds for u in r.updates} == {EXAMPLES}
    findings = audited(place, app, tmp_path / "out").findings
    assert {f.n for f in findings if f.attack == "label_inference"} == {2}


def test_data_are_left_for_the_auditor():
    """The private rows are of the test split; the adversary's and the held-out ones of the train split."""
    assert {"train", "test"} <= DIGITS.splits.keys() & LETTERS.splits.keys()
