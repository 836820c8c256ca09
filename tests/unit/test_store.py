import errno
import json
import os
import pickle

import pytest
import torch

from glasshouse import store
from glasshouse.errors import BadFile, BadValue, DiskFull
from glasshouse.outside.weights import read_weights


def test_tensors_come_back_as_they_were(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "a": base,
        "transposed": base.T,
        "shared": base,
        "row": base[1],
        "half": base.bfloat16(),
        "yes": base > 3,
        "scalar": torch.tensor(3),
    }
    store.write_tensors(tmp_path / "deep" / "x.safetensors", tensors, {"k": "v"})
    back = store.read_tensors(tmp_path / "deep" / "x.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[n], t) and back[n].dtype == t.dtype for n, t in tensors.items())
    assert store.read_metadata(tmp_path / "deep" / "x.safetensors") == {"k": "v"}
    back["a"].zero_()  # the caller's own copy
    assert torch.equal(store.read_tensors(tmp_path / "deep" / "x.safetensors")["a"], base)


def test_no_tensors_is_a_file_too(tmp_path):
    store.write_tensors(tmp_path / "x.safetensors", {})
    assert store.read_tensors(tmp_path / "x.safetensors") == {}


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    store.write_json(path, 1)

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(DiskFull, match="No space left"):
        store.write_json(path, 2)
    assert store.read_json(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]  # no temporary file stays


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match="a place that can be written"):
        store.write_json(tmp_path / "file" / "x.json", 1)


def test_lines_survive_an_interrupted_writer(tmp_path):
    path = tmp_path / "log.jsonl"
    store.append_jsonl(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2')
    assert store.read_jsonl(path) == [{"a": 1}]
    store.append_jsonl(path, {"ä": [1.5, None]})
    assert store.read_jsonl(path) == [{"a": 1}, {"ä": [1.5, None]}]
    store.write_jsonl(path, [])
    assert store.read_jsonl(path) == []


def test_not_a_number_never_reaches_a_file(tmp_path):
    with pytest.raises(BadValue, match="finite numbers"):
        store.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "read", "words"),
    [
        ("no.json", None, store.read_json, "no such file"),
        ("x.json", b"{", store.read_json, "line 1"),
        ("x.json", b"\xff\xfe", store.read_json, "UTF-8"),
        ("x.jsonl", b"1\nnot\n", store.read_jsonl, "line 2"),
        ("no.safetensors", None, store.read_tensors, "no such file"),
        ("x.safetensors", b"junk that is no header", store.read_tensors, "a safetensors file"),
        ("no.pt", None, read_weights, "no such file"),
        ("x.pt", b"", read_weights, "an empty file"),
        ("x.pt", b"PK\x03\x04junk", read_weights, "a torch file"),
        ("x.pt", pickle.dumps(print, protocol=2), read_weights, "never allowed to run code"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path, name, content, read, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile) as caught:
        read(tmp_path / name)
    assert words in str(caught.value)
    assert name in caught.value.subject


def test_cut_off_tensors(tmp_path):
    path = tmp_path / "x.safetensors"
    store.write_tensors(path, {"a": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(BadFile, match="a safetensors file"):
        store.read_tensors(path)


@pytest.mark.parametrize("found", [store.FORMAT + 1, 0, True, "1", None])
def test_formats_that_are_refused(found):
    with pytest.raises(BadFile, match="upgrade" if found == store.FORMAT + 1 else "whole number"):
        store.check_format(found, subject="transcript 'x'")


def test_newer_tensors_are_refused(tmp_path):
    store.write_tensors(tmp_path / "x.safetensors", {}, {"glasshouse_format": "99"})
    with pytest.raises(BadFile, match="version 99"):
        store.read_tensors(tmp_path / "x.safetensors")


def test_torch_weights(tmp_path):
    weights = {"w": torch.ones(2)}
    torch.save(weights, tmp_path / "a.pt")
    torch.save({"state_dict": weights, "epoch": 3}, tmp_path / "b.pth")
    torch.save([1, 2], tmp_path / "c.pt")
    assert torch.equal(read_weights(tmp_path / "a.pt")["w"], weights["w"])
    assert torch.equal(read_weights(tmp_path / "b.pth")["w"], weights["w"])
    with pytest.raises(BadFile, match="tensors by name"):
        read_weights(tmp_path / "c.pt")


def test_a_module_is_not_unpickled(tmp_path):
    torch.save(torch.nn.Linear(1, 1), tmp_path / "m.pt")
    with pytest.raises(BadFile, match="state_dict"):
        read_weights(tmp_path / "m.pt")


def test_json_is_plain_json(tmp_path):
    store.write_json(tmp_path / "x.json", {"ε": 1.0})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"ε": 1.0}
