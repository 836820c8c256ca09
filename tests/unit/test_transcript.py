"""Transcripts on disk, and cut to what one adversary may see."""

import dataclasses
import json

import pytest
import torch

from glasshouse.errors import BadFile, BadValue, Inapplicable, Undefined
from glasshouse.store import read_jsonl, read_tensors, write_tensors
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import read_grants, read_transcript, write_grants, write_transcript
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.record import Keep, Log, RoundRecord
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Batch, ClientMetrics, Dropout, Mechanism


def views(transcript, threat, grants=None, **given):
    return cut(transcript, threat=threat, grants=grants or Grants(), own={}, memory={}, **given)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_transcript_comes_back_from_disk_as_it_was(tmp_path, hidden):
    result = toy(rounds=2, secure_sum=hidden, protocol="fedavg", examples=2).transcript
    write_transcript(result, tmp_path)
    again = read_transcript(tmp_path)
    assert vars(again.terms) == vars(result.terms)
    for before, after in zip(result.rounds, again.rounds, strict=True):
        pairs = [
            *zip(before.broadcasts, after.broadcasts, strict=True),
            *zip(before.updates, after.updates, strict=True),
        ]
        pairs += [(before.aggregate, after.aggregate)] if hidden else []
        for one, two in pairs:
            left, right = dict(vars(one)), dict(vars(two))
            mine, theirs = left.pop("tensors"), right.pop("tensors")
            assert left == right
            assert all(torch.equal(t, theirs[n]) for n, t in mine.items())


def test_public_data_travels_with_the_terms(tmp_path):
    result = toy().transcript
    public = Batch(inputs=torch.rand(3, 1, 8, 8), labels=torch.tensor([1, 2, 3]))
    terms = dataclasses.replace(result.terms, public=public)
    write_transcript(dataclasses.replace(result, terms=terms), tmp_path)
    assert torch.equal(read_transcript(tmp_path).terms.public.inputs, public.inputs)


def test_no_update_is_opened_before_it_is_asked_for(tmp_path):
    played = toy()
    write_transcript(played.transcript, tmp_path)
    for line in read_jsonl(tmp_path / "rounds.jsonl"):
        if line["message"] == "update":
            (tmp_path / line["file"]).unlink()
    (record,) = read_transcript(tmp_path).rounds
    (true,) = played.transcript.rounds
    assert [(u.client, u.examples) for u in record.updates] == [(u.client, u.examples) for u in true.updates]
    with pytest.raises(BadFile, match="no such file"):
        dict(record.updates[0].tensors)
    assert record.broadcasts[0].tensors.keys() == true.broadcasts[0].tensors.keys()


@pytest.mark.parametrize(("number", "advice"), [(99, "upgrade"), (1, "run the audit or the capture again")])
def test_another_format_is_refused_by_its_number(number, advice, tmp_path):
    """Before anything else of the file is read: what format 1 states has other keys."""
    write_transcript(toy().transcript, tmp_path)
    (tmp_path / "terms.json").write_text(json.dumps({"format": number, "input_shape": [1, 8, 8]}))
    with pytest.raises(BadFile, match=advice) as caught:
        read_transcript(tmp_path)
    assert caught.value.got == f"format {number}"


def test_a_nan_in_a_transcript_is_refused(tmp_path):
    write_transcript(toy().transcript, tmp_path)
    tensors = read_tensors(tmp_path / "000001.safetensors")
    write_tensors(tmp_path / "000001.safetensors", {n: t * float("nan") for n, t in tensors.items()})
    (record,) = read_transcript(tmp_path).rounds
    with pytest.raises(BadValue, match="not finite"):
        dict(record.updates[0].tensors)


def test_a_message_of_an_unknown_kind_is_refused(tmp_path):
    write_transcript(toy().transcript, tmp_path)
    path = tmp_path / "rounds.jsonl"
    path.write_text(path.read_text().replace('"update"', '"gossip"'))
    with pytest.raises(BadFile, match="gossip"):
        read_transcript(tmp_path)


def test_grants_come_back_from_disk(tmp_path):
    grants = Grants(
        auxiliary=Batch(inputs=torch.rand(2, 1, 8, 8), labels=torch.tensor([0, 1])),
        labels={(0, 1): torch.tensor([3])},
        batch_norm={(0, 1): {"features.bn0.mean": torch.zeros(2)}},
        defense=(Mechanism(name="clip", place="update", parameters={"norm": 1.0}),),
        cohorts={4: Cohort(selected=(0, 3), dropped=(3,), examples=5, steps=2)},
    )
    write_grants(grants, tmp_path)
    again = read_grants(tmp_path)
    assert again.names() == ("auxiliary", "labels", "batch_norm", "defense", "cohorts")
    assert again.labels[0, 1].tolist() == [3]
    assert list(again.batch_norm[0, 1]) == ["features.bn0.mean"]
    assert again.defense == grants.defense
    assert again.cohorts == grants.cohorts


def test_a_client_sees_broadcasts_only():
    threat = Threat(role="client", sees=frozenset({"broadcast"}), client=1)
    view = views(toy(rounds=2).transcript, threat)
    assert [r.updates for r in view.rounds] == [{}, {}]
    assert view.rounds[0].broadcast.tensors.keys() == view.rounds[1].broadcast.tensors.keys()


@pytest.mark.parametrize("sends", ["fedsgd", "fedavg"])
def test_successive_models_and_the_cohorts_tell_a_client_the_sums(sends):
    outcome = toy(
        protocol=sends, clients=4, cohort=3, rounds=3, secure_sum=True, server_rate=0.5, dropout=0.3
    )
    truly = [r.aggregate for r in outcome.transcript.rounds]
    known = {
        a.round: Cohort(selected=a.selected, dropped=a.dropped, examples=a.examples)
        for a in truly
        if a is not None
    }
    threat = Threat(role="client", sees=frozenset({"broadcast"}), client=1)
    *result, last = (
        r.aggregate for r in views(outcome.transcript, threat, grants=Grants(cohorts=known)).rounds
    )
    assert last is None  # nothing follows it
    for mine, theirs in zip(result, truly, strict=False):
        assert mine is not None
        assert theirs is not None
        assert (mine.kind, mine.selected, mine.dropped) == (theirs.kind, theirs.selected, theirs.dropped)
        for name, t in theirs.tensors.items():
            mean = t / theirs.weight
            torch.testing.assert_close(mine.tensors[name] / mine.weight, mean, rtol=1e-3, atol=2e-6)
    assert views(outcome.transcript, threat).rounds[0].aggregate is None


def test_a_client_cannot_be_given_the_servers_eyes():
    with pytest.raises(BadValue, match="only a server receives updates"):
        Threat(role="client", sees=frozenset({"broadcast", "update"}))


def test_an_aggregate_needs_to_be_seen():
    result = toy(secure_sum=True).transcript
    blind = Threat(sees=frozenset({"broadcast"}))
    assert views(result, blind).rounds[0].aggregate is None
    assert views(result, Threat()).rounds[0].aggregate is not None


def test_a_single_update_under_secure_sum_is_refused():
    with pytest.raises(Inapplicable, match="secure_sum"):
        toy(secure_sum=True).view(client=None).single(subject="an attack")


def test_a_round_that_was_not_kept_is_said_so():
    with pytest.raises(Undefined, match="kept rounds"):
        toy().view(round=5)


def test_own_and_grants_are_cut_to_the_round_and_client():
    grants = Grants(labels={(0, 0): torch.tensor([1]), (0, 1): torch.tensor([2]), (1, 0): torch.tensor([3])})
    view = toy(rounds=2).view(round=0, client=1, grants=grants)
    assert list(view.grants.labels) == [(0, 1)]


def test_what_is_not_kept_is_not_stored():
    result = toy(rounds=3)
    log = Log(terms=result.setting.terms, keep=Keep(updates=frozenset({1}), broadcasts=frozenset({1, 2})))
    for record in result.transcript.rounds:
        for broadcast in record.broadcasts:
            log.broadcast(broadcast)
        for update in record.updates:
            log.update(update)
    kept = {r.round: (len(r.broadcasts), len(r.updates)) for r in log.transcript().rounds}
    assert kept == {1: (1, 3), 2: (1, 0)}


def test_a_frozen_part_of_later_broadcasts_is_stored_once(tmp_path):
    result = toy(rounds=2, protocol="fedavg").transcript
    first, second = result.rounds
    frozen = dict(list(first.broadcasts[0].tensors.items())[:2])
    again = dataclasses.replace(second.broadcasts[0], tensors={**second.broadcasts[0].tensors, **frozen})
    second = dataclasses.replace(second, broadcasts=(again,))
    write_transcript(dataclasses.replace(result, rounds=(first, second)), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    later = next(line for line in lines if line["message"] == "broadcast" and line["round"] == 1)
    assert later["base"] == lines[0]["file"]
    assert not frozen.keys() & read_tensors(tmp_path / later["file"]).keys()
    back = read_transcript(tmp_path).rounds[1].broadcasts[0]
    assert all(torch.equal(t, back.tensors[name]) for name, t in again.tensors.items())


def test_a_base_that_is_no_earlier_broadcast_is_refused(tmp_path):
    write_transcript(toy(rounds=1).transcript, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    lines[0]["base"] = "000009.safetensors"
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadFile, match="a broadcast before it"):
        read_transcript(tmp_path)


def test_what_travels_beside_tensors_is_seen_by_who_receives_it(tmp_path):
    result = toy(rounds=1, protocol="fedavg").transcript
    beside = (
        ClientMetrics(round=0, client=0, stage="train", values={"loss": 0.5}),
        Dropout(round=0, client=1, reason="out of memory"),
    )
    record = RoundRecord.of(0, [*result.rounds[0].messages(), *beside])
    write_transcript(dataclasses.replace(result, rounds=(record,)), tmp_path)
    again = read_transcript(tmp_path)
    server = views(again, Threat(role="server")).rounds[0]
    assert (*server.metrics, *server.dropouts) == beside
    client = views(again, Threat(role="client", client=0, sees=frozenset({"broadcast"}))).rounds[0]
    assert (client.metrics, client.dropouts) == ((), ())


def test_recording_a_round_takes_time_in_proportion_to_its_clients(monkeypatch):
    """Counted in records that are made, not in seconds: one for all messages that arrived meanwhile."""
    made, begin = [], RoundRecord.__init__

    def counted(self, **parts):
        made.append(parts["round"])
        begin(self, **parts)

    log = Log(terms=toy(rounds=1).setting.terms)
    monkeypatch.setattr(RoundRecord, "__init__", counted)
    for client in range(2_000):
        log.record(Dropout(round=0, client=client, reason="late"))
    for _ in range(3):
        log.transcript()
    assert made == [0]
    log.record(Dropout(round=0, client=2_000, reason="late"))
    assert [d.client for d in log.transcript().rounds[0].dropouts] == list(range(2_001))
    assert made == [0, 0]
