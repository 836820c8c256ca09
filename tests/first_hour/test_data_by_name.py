"""Data by name: found in GLASSHOUSE_DATA, fetched with checksum, or an error that says what to do."""

import hashlib
import http.server
import io
import pickle
import re
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glasshouse.audit.preflight.inspect import check_suite
from glasshouse.audit.run import fetch_data
from glasshouse.cli import main
from glasshouse.data import named
from glasshouse.data.fetch import ensure
from glasshouse.data.kinds import zipped
from glasshouse.data.named import NAMED, Download, find
from glasshouse.data.sources import load
from glasshouse.data.survey import survey
from glasshouse.errors import BadFile, BadScenario, BadValue
from glasshouse.progress import listen
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.load import load as load_scenario
from glasshouse.scenario.shipped import preset_text, presets
from glasshouse.scenario.suite import Member, Suite

SHARED = Path(__file__).parents[3] / "shared/data"
REAL = pytest.mark.skipif(not SHARED.is_dir(), reason="needs shared/data beside the checkout")
FACES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder that GLASSHOUSE_DATA names; a cache of the test's own."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("GLASSHOUSE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture
def server(tmp_path):
    """(folder, address) of a web server on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def publish(server, monkeypatch, name, files, members=()):
    """Serve ``files`` as the public files of ``name``."""
    folder, address = server
    downloads = []
    for file, content in files.items():
        (folder / file).write_bytes(content)
        checksum = hashlib.sha256(content).hexdigest()
        downloads.append(
            Download(url=f"{address}/{file}", sha256=checksum, size=len(content), members=members)
        )
    data = replace(NAMED[name], downloads=tuple(downloads))
    monkeypatch.setitem(named.NAMED, name, data)
    monkeypatch.delenv("GLASSHOUSE_OFFLINE", raising=False)
    return data


def cifar_archive():
    batch = {b"data": np.zeros((10, 3072), dtype=np.uint8), b"labels": list(range(10))}
    members = NAMED["cifar10"].downloads[0].members
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in (*members, "../outside"):
            data = pickle.dumps(batch)
            part = tarfile.TarInfo(name)
            part.size = len(data)
            archive.addfile(part, io.BytesIO(data))
    return content.getvalue(), members


def npz_of(path):
    np.savez(path, train_images=FACES, train_labels=LABELS)
    return path


def test_a_name_is_the_file_in_the_folder(place):
    npz_of(place / "orl_faces_64.npz")
    source, direct = load("orl"), load(f"npz:{place}/orl_faces_64.npz")
    assert source.checksum == direct.checksum
    assert source.name == "orl (orl_faces_64.npz)"
    assert not source.public, "faces are blurred unless the user says otherwise"
    result = survey("orl")
    assert result is not None
    assert result.counts == {"train": {0: 4, 1: 4, 2: 4}}
    assert survey("orl", 4, 1).shape == (1, 4, 4)


def test_the_first_folder_of_several_wins_and_what_comes_later_is_seen(place, tmp_path, monkeypatch):
    later = tmp_path / "later"
    later.mkdir()
    npz_of(later / "mnist_10k.npz")
    monkeypatch.setenv("GLASSHOUSE_DATA", f"{place}:{later}")
    assert find("mnist") == f"npz:{later}/mnist_10k.npz"
    assert survey("mnist").counts == {"train": {0: 4, 1: 4, 2: 4}}
    np.savez(place / "mnist_10k.npz", train_images=FACES[:6], train_labels=LABELS[:6])
    assert survey("mnist").counts == {"train": {0: 2, 1: 2, 2: 2}}
    assert len(load("mnist").split("train")) == 6


@pytest.mark.parametrize("name", sorted(NAMED))
def test_what_is_not_here_says_what_to_put_where(name, place):
    with pytest.raises(BadFile) as caught:
        load(name)
    error = caught.value
    assert NAMED[name].places[0].partition(":")[2] in error.needs
    assert str(place) in error.got
    assert NAMED[name].obtain in error.fix
    assert "GLASSHOUSE_DATA" in error.fix
    with pytest.raises(BadFile, match="GLASSHOUSE_DATA"):
        survey(name)


def test_no_folder_named_at_all_is_said(monkeypatch, place):
    monkeypatch.delenv("GLASSHOUSE_DATA")
    with pytest.raises(BadFile, match="GLASSHOUSE_DATA is not set; not fetched: GLASSHOUSE_OFFLINE is set"):
        load("cifar10")


def test_a_name_takes_no_path(place):
    with pytest.raises(BadValue, match="write 'mnist' alone"):
        load("mnist:somewhere")


class Bars:
    """A listener that keeps labels and steps."""

    def __init__(self):
        self.seen = []

    def begin(self, label, total):
        self.seen.append([label, total, 0])
        return self

    def advance(self):
        self.seen[-1][2] += 1

    def close(self):
        pass


def test_public_files_are_fetched_once_with_checksum_and_progress(place, server, monkeypatch):
    content, members = cifar_archive()
    data = publish(server, monkeypatch, "cifar10", {"cifar.tar.gz": content}, members)
    bars = Bars()
    with listen(bars):
        source = load("cifar10")
    ((label, total, done),) = bars.seen
    assert label == "fetching cifar10 from 127.0.0.1, MiB"
    assert total == done
    assert (source.name, source.public) == ("cifar10 (fetched)", True)
    assert {name: len(part) for name, part in source.splits.items()} == {"train": 50, "test": 10}
    kept = {path.name for path in data.fetched.iterdir()} - {".lock"}
    assert kept == {*data.downloads[0].file_names()}, (
        "no archive, no part of one, nothing that was not asked for"
    )
    (server[0] / "cifar.tar.gz").unlink()
    assert load("cifar10").checksum == source.checksum
    assert load(f"cifar10:{data.fetched}").checksum == source.checksum


def test_files_that_are_here_are_preferred_to_fetched_ones(place, server, monkeypatch):
    content, members = cifar_archive()
    publish(server, monkeypatch, "cifar10", {"cifar.tar.gz": content}, members)
    ensure("cifar10")
    npz_of(place / "cifar10_12k.npz")
    assert load("cifar10").name == "cifar10 (cifar10_12k.npz)"


def test_another_checksum_is_refused_and_nothing_kept(place, server, monkeypatch):
    files = {part.file_names()[0]: b"x" for part in NAMED["mnist"].downloads}
    data = publish(server, monkeypatch, "mnist", files)
    (server[0] / "t10k-labels-idx1-ubyte.gz").write_bytes(b"y")
    with pytest.raises(BadFile, match="nothing of it was kept") as caught:
        load("mnist")
    assert data.downloads[-1].url in caught.value.subject
    assert not (data.fetched / "t10k-labels-idx1-ubyte.gz").exists()
    assert not data.complete()


def test_a_server_that_sends_without_end_is_cut_off(place, server, monkeypatch):
    content, members = cifar_archive()
    data = publish(server, monkeypatch, "cifar10", {"cifar.tar.gz": content}, members)
    (server[0] / "cifar.tar.gz").write_bytes(content + bytes(5_000_000))
    with pytest.raises(BadFile, match=f"got    {len(content) + 1:,} bytes"):
        load("cifar10")
    assert {path.name for path in data.fetched.iterdir()} == {".lock"}


@pytest.mark.parametrize("gone", ["file", "server"])
def test_no_connection_is_the_error_that_says_what_to_do(place, server, monkeypatch, gone):
    content, members = cifar_archive()
    data = publish(server, monkeypatch, "cifar10", {"cifar.tar.gz": content}, members)
    (server[0] / "cifar.tar.gz").unlink()
    if gone == "server":
        closed = replace(data.downloads[0], url="http://127.0.0.1:9/cifar.tar.gz")
        monkeypatch.setitem(named.NAMED, "cifar10", replace(data, downloads=(closed,)))
    with pytest.raises(BadFile, match="404" if gone == "file" else "refused") as caught:
        load("cifar10")
    assert "cifar-10-batches-py" in caught.value.fix


def suite_of(source, **data):
    raw = {
        "name": "x",
        "data": {"source": source, "auxiliary": 10, "heldout": 10, "examples": 1, **data},
        "model": {"name": "mlp"},
        "federation": {"clients": 2, "batch_size": 1},
        "attacks": [{"name": "linear_input"}],
        "audit": {"metrics": ["psnr"], "distractors": 9},
    }
    return Suite(name="x", members=(Member(scenario=from_dict(raw)),))


def test_check_counts_public_files_before_they_are_fetched_and_audit_fetches_them_first(
    place, server, monkeypatch
):
    content, members = cifar_archive()
    data = publish(server, monkeypatch, "cifar10", {"cifar.tar.gz": content}, members)
    result = survey("cifar10")
    assert (result.shape, result.classes) == ((3, 32, 32), 10)
    assert {split: sum(n.values()) for split, n in result.counts.items()} == {"train": 50_000, "test": 10_000}
    suite = suite_of("cifar10")
    check_suite(suite)
    assert not data.complete(), "a check fetches nothing"
    with pytest.raises(BadScenario, match="60,001 images"):
        check_suite(suite_of("cifar10", auxiliary=60_001))
    fetch_data(suite)
    assert data.complete()


def test_check_refuses_a_name_that_is_not_here(place):
    with pytest.raises(BadScenario, match="put it there"):
        check_suite(suite_of("chest_xray"))


def test_they_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["list", "datasets", "--json"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name in NAMED:
        assert f'"name": "{name}"' in text


@pytest.mark.parametrize("name", presets())
def test_no_preset_names_a_folder_of_ours(name):
    text = preset_text(name)
    assert not re.search(r"shared/|\.\./|npz:|zip:|folder:cifar", text)
    for scenario in load_scenario(name).scenarios:
        source = scenario.data.source
        assert (
            source in ("digits", "photos", "sentences", "clinic", "cohort")
            or source in NAMED
            or name == "pli-paper"
        )


@REAL
@pytest.mark.parametrize(
    ("name", "direct"),
    [
        ("cifar10", "npz:{}/cifar10_12k.npz"),
        ("mnist", "npz:{}/mnist_10k.npz"),
        ("orl", "npz:{}/orl_faces_64.npz"),
        ("chest_xray", "npz:{}/chest_xray_28.npz"),
    ],
)
def test_names_mean_the_files_that_presets_used(name, direct, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_DATA", str(SHARED))
    assert load(name).checksum == load(direct.format(SHARED)).checksum


@REAL
@pytest.mark.parametrize(("name", "classes", "images"), [("lfw", 800, 6225), ("imagenet", 700, 700)])
def test_zips_of_real_pictures_are_counted_without_decoding_them(name, classes, images, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_DATA", str(SHARED))
    monkeypatch.setattr(zipped, "decode", None)
    result = survey(name)
    assert (result.classes, sum(result.counts["train"].values())) == (classes, images)


@REAL
def test_the_stated_counts_of_mnist_are_those_of_its_files():
    result = survey(f"idx:{SHARED}/mnist-idx")
    assert tuple(result.counts["test"][k] for k in range(10)) == NAMED["mnist"].counts["test"]
    assert sum(NAMED["mnist"].counts["train"]) == 60_000
