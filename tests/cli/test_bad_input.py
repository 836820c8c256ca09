"""Whatever is wrong, the user gets one error with subject, needs, got and fix, and a stable exit code."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse.audit.provenance.hashes import write_hashes
from glasshouse.cli import main
from glasshouse.progress import Counters

Case = tuple[str, Callable[[Path], list[str]], str]
QUICK = ["--set", "audit.controls=false", "--set", "defenses=[]", "--set", "axes={}", "--jobs", "1"]
LINEAR = """
name = "mine"
[data]
examples = 1
auxiliary = 60
heldout = 0
[model]
name = "mlp"
[federation]
clients = 3
[[attacks]]
name = "linear_input"
[audit]
metrics = ["psnr"]
utility = false
controls = false
"""


def setting(*assignments: str) -> Callable[[Path], list[str]]:
    """``check`` on a small valid scenario with some keys changed."""

    def arguments(place: Path) -> list[str]:
        (place / "mine.toml").write_text(LINEAR)
        sets = [part for text in assignments for part in ("--set", text)]
        return ["check", str(place / "mine.toml"), *sets]

    return arguments


def running(*assignments: str) -> Callable[[Path], list[str]]:
    """``audit`` of the same."""

    def arguments(place: Path) -> list[str]:
        (place / "mine.toml").write_text(LINEAR)
        sets = [part for text in assignments for part in ("--set", text)]
        return ["audit", str(place / "mine.toml"), "--out", str(place / "run"), "--jobs", "1", *sets]

    return arguments


def text(content: str) -> Callable[[Path], list[str]]:
    """``check`` on a file with this content."""

    def arguments(place: Path) -> list[str]:
        (place / "given.toml").write_text(content)
        return ["check", str(place / "given.toml")]

    return arguments


def data(**arrays: object) -> Callable[[Path], list[str]]:
    """``audit`` on an npz with these arrays in place of good ones; None leaves one out."""

    def arguments(place: Path) -> list[str]:
        good: dict[str, object] = {
            "train_images": np.random.default_rng(0).integers(0, 255, (90, 8, 8), dtype=np.uint8),
            "train_labels": np.arange(90) % 10,
        }
        np.savez(place / "set.npz", **{k: v for k, v in {**good, **arrays}.items() if v is not None})
        return running(f'data.source="npz:{place}/set.npz"')(place)

    return arguments


def picture(place: Path, name: str, size: tuple[int, int]) -> None:
    from PIL import Image

    path = place / "pictures" / "train" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, 100).save(path)


def mixed_sizes(place: Path) -> list[str]:
    for i in range(80):
        picture(place, f"{'ab'[i % 2]}/{i}.png", (8, 8))
    picture(place, "b/2.png", (9, 8))
    return running(f'data.source="folder:{place}/pictures"')(place)


def no_picture(place: Path) -> list[str]:
    for i in range(80):
        picture(place, f"{'ab'[i % 2]}/{i}.png", (8, 8))
    (place / "pictures" / "train" / "a" / "2.png").write_text("not a picture")
    return running(f'data.source="folder:{place}/pictures"')(place)


def empty_folder(place: Path) -> list[str]:
    (place / "pictures").mkdir()
    return running(f'data.source="folder:{place}/pictures"')(place)


def corrupt_npz(place: Path) -> list[str]:
    (place / "set.npz").write_bytes(b"PK\x03\x04 broken")
    return running(f'data.source="npz:{place}/set.npz"')(place)


def wrong_weights(place: Path) -> list[str]:
    torch.save({"other": torch.zeros(2)}, place / "w.pt")
    return running(f'model.weights="{place}/w.pt"')(place)


def corrupt_weights(place: Path) -> list[str]:
    (place / "w.safetensors").write_bytes(b"\x01")
    return running(f'model.weights="{place}/w.safetensors"')(place)


def foreign_result(content: str) -> Callable[[Path], list[str]]:
    def arguments(place: Path) -> list[str]:
        (place / "result.json").write_text(content)
        return ["report", str(place)]

    return arguments


def occupied(place: Path) -> list[str]:
    (place / "run").mkdir()
    (place / "run" / "scenario.given.toml").write_text("another")
    return running()(place)


def resumed_elsewhere(place: Path) -> list[str]:
    return [*occupied(place), "--resume"]


CASES: list[Case] = [
    # the scenario file
    ("unknown preset", lambda _: ["check", "qickstart"], "did you mean quickstart"),
    ("missing file", lambda p: ["check", str(p / "no.toml")], "check the path"),
    ("not TOML", text("name = [oops"), "valid TOML"),
    ("binary file", text("\x00\x01"), "valid TOML"),
    ("empty file", text(""), "name"),
    ("unknown table", text(LINEAR + "\n[fedration]\nrounds = 1\n"), "did you mean federation"),
    ("unknown key", setting('data.sorce="digits"'), "did you mean"),
    ("set without =", setting("federation.rounds"), "path=value"),
    ("set of an unknown path", setting("federation.round=3"), "did you mean"),
    ("set of broken TOML", setting("federation.rounds=[1"), "set"),
    ("rounds below 1", setting("federation.rounds=0"), "federation.rounds"),
    ("rounds as text", setting('federation.rounds="many"'), "federation.rounds"),
    ("a rate that is NaN", setting("federation.learning_rate=nan"), "federation.learning_rate"),
    ("an infinite rate", setting("federation.learning_rate=inf"), "federation.learning_rate"),
    ("a cohort of nobody", setting("federation.cohort=0.0"), "federation.cohort"),
    ("a cohort above 1", setting("federation.cohort=1.5"), "federation.cohort"),
    ("everybody drops out", setting("federation.dropout=1.0"), "federation.dropout"),
    ("momentum of 1", setting("federation.optimizer.momentum=1.0"), "federation.optimizer.momentum"),
    ("batch larger than the shard", setting("federation.batch_size=2"), "federation.batch_size"),
    ("unknown protocol", setting('federation.protocol="fedsdg"'), "did you mean fedsgd"),
    ("unknown weighting", setting('federation.weighting="sise"'), "federation.weighting"),
    ("unknown attack", setting('attacks=[{name="linear_imput"}]'), "did you mean linear_input"),
    ("attack argument unknown", setting('attacks=[{name="idlg", search.restart=3}]'), "mean restarts"),
    ("attack argument of another type", setting('attacks=[{name="idlg", search.restarts="2"}]'), "restarts"),
    ("no attack that applies", setting("attacks=[]", 'threat={role="bystander"}'), "an attack that applies"),
    ("unknown defence", setting('defenses=[{name="gausian_noise"}]'), "did you mean gaussian_noise"),
    ("defence without its argument", setting('defenses=[{name="gaussian_noise"}]'), "std"),
    ("negative noise", setting('defenses=[{name="gaussian_noise", std=-1.0}]'), "std"),
    ("a share above 1", setting('defenses=[{name="prune", share=1.5}]'), "share"),
    ("a clip of 0", setting('defenses=[{name="clip", norm=0.0}]'), "norm"),
    ("unknown model", setting('model.name="lenet6"'), "did you mean lenet5"),
    ("model argument unknown", setting("model.widht=3"), "model"),
    ("unknown metric", setting('audit.metrics=["pnsr"]'), "did you mean psnr"),
    ("victims below 1", setting("audit.victims=0"), "audit.victims"),
    ("a round that is not played", setting("audit.rounds=[5]"), "audit.rounds"),
    ("a negative seed", setting("seed=-1"), "seed"),
    ("unknown role", setting('threat.role="sever"'), "threat.role"),
    ("a client that sees updates", setting('threat.role="client"', 'threat.sees=["update"]'), "threat"),
    ("an unknown message", setting('threat.sees=["gradient"]'), "threat.sees"),
    ("a limit on an unknown metric", setting("policy.max_gain={pnsr=1.0}"), "did you mean psnr"),
    ("an axis without values", setting('axes={"federation.rounds"=[]}'), "axes"),
    ("an axis that leads nowhere", setting('axes={"federation.round"=[1]}'), "federation.round"),
    ("a cell that is wrong", setting('axes={"federation.rounds"=[1, 0]}'), "federation.rounds"),
    ("alpha where it has no meaning", running("data.alpha=0.5"), "alpha"),
    ("a resize to nothing", setting("data.resize=0"), "data.resize"),
    ("a suite without scenarios", text('name = "s"\nscenarios = []\n'), "scenarios"),
    ("an unknown entry", text('name = "s"\nscenarios = ["fedavg-stpes"]\n'), "mean fedavg-steps"),
    # the data
    ("missing data", running('data.source="npz:/nowhere/set.npz"'), "set.npz"),
    ("unknown kind of data", running('data.source="zip:set.zip"'), "zip"),
    ("corrupt npz", corrupt_npz, "npz"),
    ("npz without labels", data(train_labels=None), "train_labels"),
    ("negative labels", data(train_labels=np.arange(90) - 5), "labels"),
    ("labels that are no numbers", data(train_labels=np.array(["a"] * 90)), "labels"),
    ("too few labels", data(train_labels=np.arange(89)), "label"),
    ("NaN in images", data(train_images=np.full((90, 8, 8), np.nan)), "not finite"),
    ("floats above 1", data(train_images=np.full((90, 8, 8), 3.0)), "[0, 1]"),
    ("five channels", data(train_images=np.zeros((90, 8, 8, 5), dtype=np.uint8)), "channels"),
    ("no images", data(train_images=np.zeros((0, 8, 8), np.uint8), train_labels=np.arange(0)), "image"),
    ("missing folder", running('data.source="folder:/nowhere"'), "nowhere"),
    ("empty folder", empty_folder, "pictures"),
    ("pictures of mixed sizes", mixed_sizes, "size"),
    ("a file that is no picture", no_picture, "2.png"),
    ("missing idx files", running('data.source="idx:/nowhere"'), "nowhere"),
    ("missing CIFAR batches", running('data.source="cifar10:/nowhere"'), "nowhere"),
    ("more private examples than there are", running("federation.clients=5000"), "private"),
    ("a split that is not there", running('data.private_split="val"'), "val"),
    ("pictures too small for the model", running("data.resize=4", 'model.name="convnet"'), "8"),
    # the model
    ("a module that is not there", running('model.name="no_module_here:make"'), "no_module_here"),
    ("a factory that is not there", running('model.name="json:make"'), "make"),
    ("a factory that makes no model", running('model.name="json:JSONDecoder"'), "model"),
    ("missing weights", running('model.weights="/nowhere/w.safetensors"'), "w.safetensors"),
    ("weights of another model", wrong_weights, "weight"),
    ("corrupt weights", corrupt_weights, "w.safetensors"),
    ("pre-training without data", running("model.pretraining.epochs=1"), "public"),
    # the run
    ("an update that is not finite", running('attacks=["inverting_gradients"]', "federation.local_epochs=4",
     'federation.protocol="fedavg"', "federation.learning_rate=1e29", "data.examples=4"), "not finite"),
    ("a folder that holds a run", occupied, "--resume"),
    ("a resume of another scenario", resumed_elsewhere, "another scenario"),
    ("a device that is not there", lambda p: [*running()(p), "--device", "mps"], "device"),
    ("an unknown device", lambda p: [*running()(p), "--device", "gpu"], "device"),
    ("an unknown null adversary", running('audit.baselines=["gray picture"]'), "did you mean grey picture"),
    # what is there already
    ("a report of nothing", lambda p: ["report", str(p / "none")], "result.json"),
    ("a corrupt result", foreign_result("{"), "result.json"),
    ("a result of a newer format", foreign_result('{"format": 99}'), "format"),
    ("a result that is a list", foreign_result("[]"), "format"),
    ("a comparison with nothing", lambda p: ["compare", str(p / "a"), str(p / "b")], "result.json"),
    ("a replay of nothing", lambda p: ["replay", str(p), "--attack", "idlg"], "replay"),
    ("an unknown group", lambda _: ["list", "atacks"], "did you mean attacks"),
    ("an unknown name", lambda _: ["show", "linear_imput"], "did you mean linear_input"),
]  # fmt: skip


def outcome(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(("build", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_error_with_its_four_parts_and_exit_code_2(build, words, tmp_path, capsys):
    code, output = outcome(build(tmp_path), capsys)
    assert code == 2
    assert words in output
    assert all(part in output for part in ("\n  needs  ", "\n  got    ", "\n  fix    "))
    assert "Traceback" not in output


def test_there_are_enough_cases():
    assert len({name for name, *_ in CASES}) == len(CASES) >= 60


def test_the_error_is_json_where_that_is_asked_for(tmp_path, capsys):
    code, output = outcome(["check", "qickstart", "--json"], capsys)
    assert code == 2
    assert set(json.loads(output)["error"]) == {"subject", "needs", "got", "fix"}


def test_an_unknown_option_is_bad_usage(capsys):
    code, output = outcome(["check", "quickstart", "--prob"], capsys)
    assert code == 2
    assert "No such option" in output


def test_a_name_that_is_like_none_of_hundreds_is_answered_in_one_line(capsys):
    code, output = outcome(["show", "qqqqqq"], capsys)
    assert code == 2
    assert len(output) < 300


def test_an_attack_that_the_threat_does_not_allow_is_a_refusal(tmp_path, capsys):
    both = 'attacks=["linear_input", "loki"]'
    code, _ = outcome(running(both)(tmp_path), capsys)
    (refusal,) = json.loads((tmp_path / "run" / "result.json").read_text())["refusals"]
    assert code == 0  # the other one was measured
    assert "threat.changes" in refusal["fix"]


def test_a_full_disk_is_one_error(tmp_path, capsys, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    arguments = running()(tmp_path)
    monkeypatch.setattr("glasshouse.disk.tempfile.mkstemp", full)
    code, output = outcome(arguments, capsys)
    assert code == 2
    assert "space" in output


def test_an_interrupt_keeps_what_is_finished_and_resume_goes_on(tmp_path, capsys, monkeypatch):
    arguments, real, attacks = running()(tmp_path), Counters.advance, iter(range(1, 100))

    def stops(self, label):
        real(self, label)
        if label == "attacks" and next(attacks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Counters, "advance", stops)
    code, _ = outcome(arguments, capsys)
    assert code == 130
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").glob("cells/*/claims/*/*/claims.json")}
    assert len(kept) >= 2
    monkeypatch.undo()
    code, _ = outcome([*arguments, "--resume"], capsys)
    assert code == 0
    # What the interrupted run took is in the whole, and the parts add up to it.
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    spent = {line["event"]: line["cpu_seconds"] for line in log if "cpu_seconds" in line}
    assert set(spent) == {"stop", "end"}
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    whole = manifest["cpu_seconds_of_the_whole_run"]
    assert whole == pytest.approx(spent["stop"] + spent["end"], abs=0.01)
    assert sum(manifest["cpu_seconds"].values()) == pytest.approx(whole, abs=0.1)
    assert f"{whole:.0f} CPU seconds of the whole run" in (tmp_path / "run" / "report.html").read_text()
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())


def test_a_resume_with_other_settings_is_refused_by_their_names(tmp_path, capsys):
    arguments = running("federation.clients=3")(tmp_path)
    assert outcome(arguments, capsys)[0] == 0
    others = ["--set", "federation.clients=4", "--set", "audit.victims=2"]
    code, output = outcome([*arguments, *others, "--resume"], capsys)
    assert code == 2
    assert "federation.clients = 4 (it began with 3)" in output
    assert "audit.victims = 2" in output
    assert outcome([*arguments, "--resume"], capsys)[0] == 0


def test_a_replay_of_a_newer_transcript_is_refused(tmp_path, capsys):
    assert outcome(running()(tmp_path), capsys)[0] == 0
    (terms,) = (tmp_path / "run").glob("cells/*/transcript/terms.json")
    terms.write_text(json.dumps({**json.loads(terms.read_text()), "format": 99}))
    write_hashes(terms.parent.parent)
    (tmp_path / "run" / "manifest.json").unlink()
    code, output = outcome(["replay", str(tmp_path / "run"), "--attack", "linear_input"], capsys)
    assert code == 2
    assert "upgrade" in output


def test_a_broken_policy_is_exit_code_1(tmp_path, capsys):
    assert outcome(running("policy.max_gain={psnr=1.0}")(tmp_path), capsys)[0] == 1
