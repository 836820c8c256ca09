"""import glasshouse as gh: light, typed, and the same as the command line."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import glasshouse as gh
from glasshouse.cli import main
from glasshouse.errors import BadFile, BadScenario, BadValue, Inapplicable, NotInstalled, UnknownName

ROOT = Path(__file__).parents[2]
IMAGES = np.random.default_rng(0).integers(0, 256, (90, 8, 8), dtype=np.uint8)
LABELS = np.arange(90) % 3
SCENARIO = {
    "name": "mine",
    "data": {"auxiliary": 20, "heldout": 20},
    "federation": {"clients": 3},
    "model": {"name": "mlp"},
    "attacks": ["linear_input"],
    "audit": {"victims": 3, "metrics": ["psnr"], "controls": False, "distractors": 9, "utility": False},
}


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(inplace=True), nn.Linear(16, 3))


SCRIPT = f"""
import numpy as np
import glasshouse as gh

print("begin")
data = dict(np.load("mine.npz"))
gh.audit({SCENARIO!r}, data=data, out="run", jobs=1)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Made by a script that does not ask for its own name, with arrays in memory."""
    place = tmp_path_factory.mktemp("script")
    np.savez(place / "mine.npz", train_images=IMAGES, train_labels=LABELS)
    (place / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "mine.py"], cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "begin\n"), done.stderr
    return gh.load(place / "run")


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory):
    torch.manual_seed(0)
    net = network()
    out = tmp_path_factory.mktemp("runs") / "own"
    return net, gh.audit(SCENARIO, data=(IMAGES, LABELS), model=net, out=out)


def test_importing_loads_nothing():
    code = "import sys, glasshouse as gh; gh.audit; gh.guard; dir(gh); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_stub_names_what_there_is():
    stub = ast.parse((ROOT / "src/glasshouse/__init__.pyi").read_text())
    places = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert places == gh.PUBLIC
    assert sorted([*places, "__version__"]) == sorted(gh.__all__)
    assert set(gh.__all__) <= set(dir(gh))


def test_packages_that_share_a_name_with_a_function_can_be_called():
    import glasshouse.audit.run  # binds the package in the place of the function

    assert "jobs" in inspect.signature(gh.audit).parameters
    assert glasshouse.audit.run.audit is not gh.audit
    assert gh.guard([torch.ones(8, 16)]).findings


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'adit'"):
        _ = gh.adit


def test_findings_by_field_and_as_a_frame(run):
    (finding,) = run.findings.where(attack="linear_input", metric="psnr")
    assert run.verdicts[next(iter(run.verdicts))] == finding.verdict
    frame = run.findings.to_frame()
    assert frame.loc[0, "value"] == finding.value
    assert frame.loc[0, "exchange.gain"] == finding.exchange.gain
    with pytest.raises(UnknownName, match="did you mean attack"):
        run.findings.where(atack="dlg")


def test_without_pandas_the_error_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotInstalled, match=r"pip install 'glasshouse\[frames\]'"):
        run.findings.to_frame()


def test_a_run_is_loaded_shown_and_seen_in_a_notebook(run, capsys):
    same = gh.load(str(run.folder))
    assert same.result == run.result
    same.show()
    assert "report:" in capsys.readouterr().out
    assert same._repr_html_().startswith("<iframe srcdoc=")
    assert "findings leak" in repr(same)
    with pytest.raises(BadFile, match="no such file"):
        gh.load(run.folder / "cells")


def test_a_scenario_from_a_dictionary_is_checked_whole():
    scenario = gh.scenario(SCENARIO)
    assert gh.check(scenario).work[-1].part == "total"
    with pytest.raises(BadScenario, match="did you mean linear_input") as caught:
        gh.scenario({**SCENARIO, "attacks": ["linear_inptu"], "federation": {"clients": 0}})
    assert len(caught.value.problems) == 2


def test_arrays_and_a_network_in_memory(in_memory):
    net, run = in_memory
    assert run.findings[0].verdict == "leaks"
    (data,) = run.folder.glob("data-*.npz")
    with np.load(data) as arrays:
        np.testing.assert_array_equal(arrays["train_images"], IMAGES)
    assert "attacks ran in the process that scored them" in (run.folder / "log.jsonl").read_text()
    assert net[2].inplace, "the user's own network is not touched"


def test_the_same_arrays_and_network_go_on_and_others_are_refused(in_memory):
    net, run = in_memory
    again = gh.audit(SCENARIO, data=(IMAGES, LABELS), model=net, out=run.folder, resume=True)
    assert [f.value for f in again.findings] == [f.value for f in run.findings]
    with pytest.raises(BadFile, match="another scenario"):
        gh.audit(SCENARIO, data=(255 - IMAGES, LABELS), model=net, out=run.folder, resume=True)
    with pytest.raises(BadFile, match="another scenario"):
        gh.audit(SCENARIO, data=(IMAGES, LABELS), model=network(), out=run.folder, resume=True)


def test_replay_cannot_build_a_network_that_was_in_memory(in_memory, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["replay", str(in_memory[1].folder), "--attack", "linear_input", "--trust-factory"])
    assert stop.value.code == 2
    assert "write a function that builds it into a file" in capsys.readouterr().err


def test_the_command_line_goes_on_with_arrays_from_memory(run, monkeypatch):
    given = run.folder / "scenario.given.toml"
    with pytest.raises(SystemExit) as stop:
        main(["audit", str(given), "--out", str(run.folder), "--resume", "--jobs", "1"])
    assert stop.value.code == 0
    assert gh.load(run.folder).findings == run.findings


def test_tensors_have_their_channels_first():
    pictures = torch.rand(90, 3, 8, 8)
    checked = gh.check(SCENARIO, data=(pictures, LABELS))
    assert checked.suite.scenarios[0].data.source.startswith("npz:")
    with pytest.raises(BadFile, match="values from"):
        gh.check(SCENARIO, data=(pictures * 255, LABELS))


@pytest.mark.parametrize(
    ("data", "match"),
    [((IMAGES,), "got    a tuple of 1"), (([np.zeros((8, 8)), "x"], LABELS), "stack the examples")],
)
def test_data_that_are_none_say_so(data, match):
    with pytest.raises(BadValue, match=match):
        gh.check(SCENARIO, data=data)


def test_threads_are_given_back(tmp_path):
    torch.set_num_threads(2)
    try:
        with pytest.raises(BadScenario):
            gh.audit({**SCENARIO, "data": {"auxiliary": 10_000}}, out=tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def gradient_of(net, image, label):
    return torch.autograd.grad(functional.cross_entropy(net(image), label), net.parameters())


def test_an_attack_on_a_gradient_in_memory():
    net, image, label = network(), torch.rand(1, 1, 8, 8), torch.tensor([2])
    gradient = gradient_of(net, image, label)
    named = dict(zip(dict(net.named_parameters()), gradient, strict=True))
    for update in (gradient, named):
        (claim,) = gh.attack("linear_input")(gh.view(net, update, input_shape=(1, 8, 8)))
        torch.testing.assert_close(claim.inputs, image, atol=1e-4, rtol=0)
    assert net[2].inplace, "the user's own network is not touched"


def test_an_attack_on_weights_after_local_training():
    net, image, label = network(), torch.rand(1, 1, 8, 8), torch.tensor([2])
    delta = [-0.1 * g for g in gradient_of(net, image, label)]
    seen = gh.view(net, delta, input_shape=(1, 8, 8), sends="delta", learning_rate=0.1)
    (claim,) = gh.attack("inverting_gradients", search={"iterations": 60, "restarts": 1})(seen, seed=1)
    assert (claim.inputs - image).abs().mean() < (0.5 - image).abs().mean()
    assert claim.labels.tolist() == [2]


def test_an_attack_says_what_it_lacks():
    net = network()
    seen = gh.view(net, gradient_of(net, torch.rand(1, 1, 8, 8), torch.tensor([2])), input_shape=(1, 8, 8))
    with pytest.raises(Inapplicable, match="auxiliary"):
        gh.attack("ggl")(seen)
    with pytest.raises(BadScenario, match="did you mean iterations"):
        gh.attack("idlg", search={"iteration": 3})
    with pytest.raises(BadScenario, match="did you mean idlg"):
        gh.attack("idlgg")


def test_an_update_that_does_not_fit_the_network_is_refused():
    net = network()
    gradient = gradient_of(net, torch.rand(1, 1, 8, 8), torch.tensor([2]))
    with pytest.raises(BadValue, match=r"'3\.bias' is missing"):
        gh.view(net, gradient[:-1], input_shape=(1, 8, 8))
    with pytest.raises(BadValue, match=r"not \(16, 64\)"):
        gh.view(net, [gradient[1], *gradient[1:]], input_shape=(1, 8, 8))
    with pytest.raises(BadValue, match="forward pass on pictures"):
        gh.view(net, gradient, input_shape=(1, 9, 9))


@pytest.mark.parametrize("form", ["module", "state_dict", "numpy", "list", "npz", "npz list"])
def test_the_guard_takes_a_model_in_any_form(form, tmp_path):
    net = network()
    with torch.no_grad():
        net[1].weight[3] = 0.0
    arrays = {name: t.numpy() for name, t in net.state_dict().items()}
    np.savez(tmp_path / "named.npz", **arrays)
    np.savez(tmp_path / "listed.npz", *arrays.values())
    model = {
        "module": net,
        "state_dict": net.state_dict(),
        "numpy": arrays,
        "list": list(arrays.values()),
        "npz": tmp_path / "named.npz",
        "npz list": str(tmp_path / "listed.npz"),
    }[form]
    assert any(sentence.startswith("1:") for sentence in gh.guard(model, agreed=network()).findings)
    assert gh.guard(model).findings


def test_a_list_of_another_length_is_odd_structure():
    arrays = [p.detach().numpy() for p in network().parameters()]
    assert not gh.guard(arrays, agreed=network()).findings
    assert gh.guard(arrays[:-1], agreed=network()).findings


def test_the_page_runs(tmp_path):
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 6
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
