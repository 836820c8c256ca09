"""Messages on the disk: read one tensor at a time, in parts, rounded, over a base model elsewhere."""

import dataclasses
import json

import pytest
import torch

from glasshouse.errors import BadFile, BadValue
from glasshouse.outside import limits
from glasshouse.outside.weights import read_weights
from glasshouse.store import TensorFile, read_jsonl, write_tensors
from glasshouse.tensors import HELD, Lazy, copy_to, derive
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import TranscriptWriter, read_transcript, write_transcript
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.reference import BASES
from glasshouse.transcript.threat import Threat


def played(**terms):
    return toy(protocol="fedavg", examples=2, **terms).transcript


def counted(tensors, size):
    """Lazy tensors, and the names that were asked for so far."""
    asked = []

    def make(name):
        asked.append(name)
        return tensors[name]

    return Lazy(lambda: tensors, make, lambda: size), asked


def test_a_tensor_is_made_when_it_is_asked_for():
    lazy, asked = counted({"a": torch.ones(1), "b": torch.zeros(1)}, 8)
    doubled = derive(lazy, lambda _, t: 2 * t, keep=lambda name: name != "b")
    assert (list(doubled), len(doubled), "b" in doubled, asked) == (["a"], 1, False, [])
    assert doubled["a"].item() == 2
    assert asked == ["a"]
    with pytest.raises(KeyError):
        doubled["b"]


def test_what_is_small_is_copied_at_once_and_what_is_large_when_it_is_asked_for():
    mine = {"a": torch.ones(1)}
    small, asked = counted(mine, HELD // 2)
    assert isinstance(copy_to(small, "cpu"), dict)
    both, _ = counted(mine, HELD)
    copied = copy_to({"one": small, "two": both}, "cpu")
    assert asked == ["a"]
    copied["one"]["a"].zero_()
    assert mine["a"].item() == 1
    assert copied["one"]["a"].item() == 1  # a new copy each time


def test_the_file_is_byte_for_byte_what_safetensors_writes(tmp_path):
    from safetensors.torch import save

    tensors = {
        "f": torch.randn(2, 3).T,
        "i": torch.arange(3),
        "b": torch.tensor([True]),
        "h": torch.zeros(3, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 2),
        "one": torch.tensor(1.0, dtype=torch.float64),
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    plain = {name: t.contiguous() for name, t in tensors.items()}
    assert (tmp_path / "x.safetensors").read_bytes() == save(plain, {"glasshouse_format": "1"})
    file = TensorFile(tmp_path / "x.safetensors")
    assert all(torch.equal(file.read(name), t) for name, t in tensors.items())


def test_a_file_that_was_cut_off_is_refused_where_it_is_read(tmp_path):
    place = tmp_path / "x.safetensors"
    write_tensors(place, {"a": torch.ones(100)})
    file = TensorFile(place)
    place.write_bytes(place.read_bytes()[:-4])
    with pytest.raises(BadFile, match="396"):
        file.read("a")
    with pytest.raises(BadFile):
        TensorFile(place)


def test_messages_stored_as_they_come_make_the_same_transcript(tmp_path):
    true = played(rounds=2)
    writer = TranscriptWriter(folder=tmp_path / "a")
    log = Log(terms=true.terms, store=writer.store)
    for message in (m for record in true.rounds for m in record.messages()):
        log.record(message)
    writer.finish(log.transcript())
    write_transcript(true, tmp_path / "b")
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)


def test_a_view_of_stored_messages_has_the_numbers_of_one_in_memory(tmp_path):
    true = played(rounds=2)
    write_transcript(true, tmp_path)
    given = {"threat": Threat(), "grants": Grants(), "own": {}, "memory": {}}
    for mine, theirs in zip(
        cut(read_transcript(tmp_path), **given).rounds, cut(true, **given).rounds, strict=True
    ):
        for client, update in theirs.updates.items():
            assert mine.updates[client].kind == update.kind
            assert mine.updates[client].tensors.keys() == update.tensors.keys()
            assert all(torch.equal(mine.updates[client].tensors[n], t) for n, t in update.tensors.items())


def test_a_large_message_is_written_in_parts(tmp_path, monkeypatch):
    true = played(rounds=1)
    monkeypatch.setattr("glasshouse.transcript.files.SHARD", 600)
    write_transcript(true, tmp_path)
    lines = read_jsonl(tmp_path / "rounds.jsonl")
    assert all(line["more"] and (tmp_path / line["more"][-1]).is_file() for line in lines if "file" in line)
    (back,) = read_transcript(tmp_path).rounds
    (record,) = true.rounds
    for mine, theirs in zip(back.updates, record.updates, strict=True):
        assert all(torch.equal(mine.tensors[n], t) for n, t in theirs.tensors.items())
    lines[0]["more"] = [lines[1]["file"]]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadFile, match="one line, one file"):
        read_transcript(tmp_path)


@pytest.mark.parametrize(("rounded", "error"), [("bfloat16", 2**-8), ("float16", 2**-10)])
def test_updates_are_rounded_where_the_keeper_says_so(rounded, error, tmp_path):
    true = played(rounds=1)
    writer = TranscriptWriter(folder=tmp_path, keep=Keep(rounded=rounded))
    (record,) = true.rounds
    stored = [writer.append(message) for message in record.messages()]
    writer.terms(true.terms)
    assert all(torch.equal(stored[0].tensors[n], t) for n, t in record.broadcasts[0].tensors.items())
    for mine, theirs in zip(read_transcript(tmp_path).rounds[0].updates, record.updates, strict=True):
        for name, t in theirs.tensors.items():
            assert mine.tensors[name].dtype == torch.float32
            assert not torch.equal(mine.tensors[name], t)
            torch.testing.assert_close(mine.tensors[name], t, rtol=error, atol=1e-7)


def test_numbers_too_large_for_the_type_are_stored_as_they_are(tmp_path):
    true = played(rounds=1)
    (record,) = true.rounds
    large = {name: t + 1e5 for name, t in record.updates[0].tensors.items()}
    update = dataclasses.replace(record.updates[0], tensors=large)
    stored = TranscriptWriter(folder=tmp_path, keep=Keep(rounded="float16")).append(update)
    assert all(torch.equal(stored.tensors[name], t) for name, t in large.items())


def test_parameters_are_kept_as_their_change_where_the_keeper_says_so():
    (record,) = played(rounds=1).rounds
    start = record.broadcasts[0].tensors
    new = {name: start[name] + t for name, t in record.updates[0].tensors.items()}
    sent = dataclasses.replace(record.updates[0], kind="parameters", tensors=new)
    kept = Keep(deltas=True).cut(sent, start)
    assert kept.kind == "delta"
    assert all(torch.equal(t, new[name] - start[name]) for name, t in kept.tensors.items())
    assert Keep(deltas=True).cut(sent) is sent  # nobody knows what it was trained on


def with_base(tmp_path, monkeypatch):
    """A transcript whose broadcasts lie over a base model elsewhere; its true messages."""
    true = played(rounds=2)
    frozen = dict(list(true.rounds[0].broadcasts[0].tensors.items())[:2])
    base = tmp_path / "bases" / "base.safetensors"
    write_tensors(base, frozen)
    writer = TranscriptWriter(folder=tmp_path / "t", keep=Keep(base=base))
    log = Log(terms=true.terms, store=writer.store)
    for message in (m for record in true.rounds for m in record.messages()):
        log.record(message)
    kept = log.transcript()
    first, sent = kept.rounds[0].broadcasts[0].tensors, true.rounds[0].broadcasts[0].tensors
    assert all(torch.equal(first[n], t) for n, t in sent.items())  # the keeper knows where the base lies
    writer.finish(kept)
    monkeypatch.setenv(BASES, str(base.parent))
    return true, frozen, base


def test_a_frozen_base_is_named_by_its_hash_and_never_copied(tmp_path, monkeypatch):
    true, frozen, base = with_base(tmp_path, monkeypatch)
    first = read_jsonl(tmp_path / "t" / "rounds.jsonl")[0]
    assert first["reference"]["file"] == base.name
    assert not frozen.keys() & TensorFile(tmp_path / "t" / first["file"]).entries.keys()
    for mine, theirs in zip(read_transcript(tmp_path / "t").rounds, true.rounds, strict=True):
        back, sent = mine.broadcasts[0].tensors, theirs.broadcasts[0].tensors
        assert back.keys() >= sent.keys()
        assert all(torch.equal(back[name], t) for name, t in sent.items())


def test_another_base_model_or_none_is_refused_by_its_hash(tmp_path, monkeypatch):
    _, frozen, base = with_base(tmp_path, monkeypatch)
    write_tensors(base, {name: t + 1 for name, t in frozen.items()})
    with pytest.raises(BadFile, match="another content"):
        dict(read_transcript(tmp_path / "t").rounds[0].broadcasts[0].tensors)
    monkeypatch.setenv(BASES, "")
    with pytest.raises(BadFile, match=BASES):
        dict(read_transcript(tmp_path / "t").rounds[0].broadcasts[0].tensors)


def test_a_base_model_with_other_numbers_is_not_named(tmp_path, caplog):
    true = played(rounds=1)
    base = tmp_path / "base.safetensors"
    write_tensors(base, {name: t + 1 for name, t in true.rounds[0].broadcasts[0].tensors.items()})
    TranscriptWriter(folder=tmp_path / "t", keep=Keep(base=base)).finish(true)
    assert "other numbers" in caplog.text
    assert "reference" not in read_jsonl(tmp_path / "t" / "rounds.jsonl")[0]


def test_a_file_outside_cannot_be_named_by_its_path(tmp_path, monkeypatch):
    with_base(tmp_path, monkeypatch)
    path = tmp_path / "t" / "rounds.jsonl"
    path.write_text(path.read_text().replace('"base.safetensors"', '"../base.safetensors"'))
    with pytest.raises(BadFile, match="reference"):
        read_transcript(tmp_path / "t")


def test_a_limit_is_a_setting_that_its_error_names(tmp_path, monkeypatch):
    write_tensors(tmp_path / "m.safetensors", {"fc.weight": torch.ones(8, 16)})
    monkeypatch.setenv("GLASSHOUSE_MOST_FILE_BYTES", "500")
    with pytest.raises(BadFile, match="GLASSHOUSE_MOST_FILE_BYTES"):
        read_weights(tmp_path / "m.safetensors")
    monkeypatch.setenv("GLASSHOUSE_MOST_FILE_BYTES", "5000")
    assert read_weights(tmp_path / "m.safetensors").keys() == {"fc.weight"}
    write_transcript(played(rounds=1), tmp_path / "t")
    monkeypatch.setenv("GLASSHOUSE_MOST_INDEX_BYTES", "10")
    with pytest.raises(BadFile, match="GLASSHOUSE_MOST_INDEX_BYTES"):
        read_transcript(tmp_path / "t")
    for wrong in ("0", "-1", "1e9", "9" * 40):
        monkeypatch.setenv("GLASSHOUSE_MOST_NUMBERS", wrong)
        with pytest.raises(BadValue, match="GLASSHOUSE_MOST_NUMBERS"):
            limits.NUMBERS()


def test_defaults_fit_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "memory_bytes", lambda: 2**40)
    assert limits.NUMBERS() == 2**36
    monkeypatch.setattr(limits, "memory_bytes", lambda: 2**30)
    assert limits.NUMBERS() == 2**28
    assert limits.capture_bytes(tmp_path / "new" / "folder") >= 1
