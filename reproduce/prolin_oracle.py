"""An oracle beside PROLIN's detector: ``python -m reproduce.prolin_oracle --out FOLDER --seed 103 104``.

The setting of the authors' code: label shards, two local epochs. Twenty of the fifty clients themselves are
trained from every broadcast, with and without the example, in the place of shadow clients, so that the
detector is calibrated on this federation's own data. The posterior then judges the sums (``sums``), and the
same updates one by one, as if no sum hid them (``single``). Truth is used throughout: this bounds what better
shadow clients, and no secure sum, could add to the detector; it is no attack. What is finished is kept.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from glasshouse.attacks.property.discriminant import fisher
from glasshouse.attacks.property.evidence import Evidence, Method
from glasshouse.attacks.property.per_example import PerExample
from glasshouse.attacks.property.prolin_posterior import ProlinPosterior
from glasshouse.attacks.property.properties import Membership, Scene
from glasshouse.attacks.property.shadow import Cast, updates
from glasshouse.audit.plan import plan
from glasshouse.audit.simulation.group import simulate
from glasshouse.errors import BadFile
from glasshouse.metrics import membership
from glasshouse.models.build import build
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.scenario.load import load, write_resolved
from glasshouse.store import read_tensors, write_tensors
from glasshouse.transcript.files import read_grants, read_transcript
from glasshouse.transcript.grants import Grants
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Batch, Terms
from reproduce.pages import AUTHORS, PULL

POOL = 300
"""Auxiliary examples of a detector, as in the attack."""
KNOWN = 20
"""Clients that calibrate it, as many as the attack's held-out shadow clients of a kind."""
Bools = NDArray[np.bool_]


def played(out: Path, seed: int, rounds: int) -> Path:
    """The folder of the federation of a seed, played now if it was not."""
    changes = [*AUTHORS[1:], PULL, f"audit.seeds=[{seed}]", f"federation.rounds={rounds}"]
    (planned,) = plan(load("prolin-estimator", changes), out)
    (group,) = planned.groups
    folder = Path(group.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "scenario.toml").exists():
        write_resolved(planned.cell.scenario, folder / "scenario.toml")
    simulate(group)
    return folder


def clients_of(truth: Truth, target: Batch) -> tuple[Batch, Tensor, Tensor]:
    """All clients twice, as rows of one pool: the pool, rows without and with the target (N, B).

    A member without the target has another of its examples twice; anybody else with it gives up one example.
    """
    pool = Batch(
        inputs=torch.cat([truth.private.inputs, target.inputs]),
        labels=torch.cat([truth.private.labels, target.labels]),
    )
    last = len(truth.private)
    same = (truth.private.inputs == target.inputs).flatten(1).all(1)
    without, having = [], []
    for client in sorted(truth.shards):
        rows = [last if same[row] else row for row in truth.shards[client]]
        rows.sort(key=lambda row: row != last)  # the target first, if it is there
        without.append([rows[1], *rows[1:]] if rows[0] == last else rows)
        having.append([last, *rows[1:]])
    return pool, torch.tensor(without), torch.tensor(having)


def detector_of(model: nn.Module, terms: Terms, grants: Grants, *, examples: int, round: int) -> Tensor:
    """The attack's direction: how the example pulls in the first step, among others' examples. (z,)."""
    assert grants.auxiliary is not None
    stream = Rng.root(0).child(f"oracle/{round}")
    order = torch.randperm(len(grants.auxiliary), generator=stream.torch())[:POOL]
    others = grants.auxiliary.pick(order)
    scene = Scene(auxiliary=others, challenge=grants.challenge, terms=terms, examples=examples)
    cast = Membership().pairs(scene, count=2, rng=stream.child("pairs")).negative
    single = torch.arange(len(cast.pool)) >= len(others)  # the example in question
    assert cast.shares is not None
    low = cast.shares.double()
    high = (low * (examples - 1) + single.double() / single.sum()) / examples
    gradients = PerExample.of(model, terms, cast.pool, rng=stream)
    rate, ridge = -terms.rate(round), Method().shrinkage
    found = fisher(gradients, low, high, count=examples, rate=rate, shrinkage=ridge)
    return found.direction.double()


def pulls(folder: Path) -> dict[str, Tensor]:
    """The features of every round.

    Returns:
        ``known`` (n, 2, H): of the known clients, without and with the example; ``sent`` (n, N): of what each
        client sent, 0 where it was not asked; ``sums`` (n,): of the sums on the wire.
    """
    kept = folder / "oracle.safetensors"
    if kept.exists():
        return read_tensors(kept)
    transcript, grants = read_transcript(folder / "transcript"), read_grants(folder / "grants")
    truth, terms = read_truth(folder / "truth"), transcript.terms
    assert grants.challenge is not None
    pool, without, having = clients_of(truth, grants.challenge.pick(torch.tensor([0])))
    member = torch.tensor([client in next(iter(truth.marked.values())) for client in range(len(without))])
    sent = torch.where(member[:, None], having, without)
    known = torch.randperm(len(without), generator=Rng.root(0).child("known").torch())[:KNOWN]
    model = build(terms.architecture)
    names = [name for name, _ in model.named_parameters()]
    features, own, sums = [], torch.zeros(len(transcript.rounds), len(without)).double(), []
    for number, one in enumerate(transcript.rounds):
        aggregate = one.aggregate
        assert aggregate is not None
        model.load_state_dict(one.broadcasts[0].tensors)
        direction = detector_of(model, terms, grants, examples=without.shape[1], round=one.round)
        asked = torch.tensor(aggregate.selected)
        cast = Cast(pool=pool, rows=torch.cat([without[known], having[known], sent[asked]]))
        each = updates(model, terms, cast, rng=Rng.root(0).child(f"train/{one.round}"), round=one.round)
        scores = each.double() @ direction
        features.append(scores[: 2 * len(known)].view(2, -1))
        own[number, asked] = scores[2 * len(known) :]
        scale = (len(aggregate.selected) - len(aggregate.dropped)) / aggregate.weight
        flat = torch.cat([aggregate.tensors[name].double().reshape(-1) for name in names])
        sums.append(scale * float(flat @ direction))
    found = {"known": torch.stack(features), "sent": own, "sums": torch.tensor(sums).double()}
    write_tensors(kept, found)
    return found


def evidence(features: Tensor, values: Tensor, present: Tensor) -> Evidence:
    """What the posterior reads: values (n,) of sums over present clients (n, N), features (n, 2, N)."""
    n = len(values)
    return Evidence(
        rounds=tuple(range(n)),
        participation=present,
        count=present.sum(1),
        kernel=torch.diag(values)[None],
        offset=torch.zeros(n, 1, dtype=torch.float64),
        heldout=features[..., None],
        norm=torch.ones(n, 1, dtype=torch.float64),
    )


def calls(folder: Path) -> Iterator[tuple[str, Bools, Bools]]:
    """Decisions of each oracle, and the truth.

    Raises:
        BadFile: the updates that are made here are not those in the sums.
    """
    found, truth = pulls(folder), read_truth(folder / "truth")
    known, sent, sums = found["known"], found["sent"], found["sums"]
    member = np.isin(np.arange(sent.shape[1]), next(iter(truth.marked.values())))
    gap = float((sent.sum(1) - sums).norm() / sums.norm())
    if gap > 0.01:
        raise BadFile(
            str(folder),
            needs="sums of the updates that are trained here from its truth",
            got=f"a relative distance of {gap:.2g}",
            fix="play the federation again",
        )
    judge, present = ProlinPosterior(), (sent != 0).double()
    _, behind = judge.judge(evidence(known, sums, present), (len(sums),), rng=Rng.root(0))
    yield "sums", behind[0].numpy(), member
    where, who = present.nonzero(as_tuple=True)
    alone = torch.zeros(len(who), sent.shape[1]).double()
    alone[torch.arange(len(who)), who] = 1
    single = evidence(known[where], sent[where, who], alone)
    _, seen = judge.judge(single, (len(who),), rng=Rng.root(0))
    yield "single", seen[0].numpy(), member


def main() -> None:
    """Play and judge every seed; print F1 of each and of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, nargs="+", default=list(range(103, 112)))
    parser.add_argument("--rounds", type=int, default=150)
    arguments = parser.parse_args()
    prepare_process()
    out, every = arguments.out.resolve(), dict[str, list[tuple[Bools, Bools]]]()
    for seed in arguments.seed:
        for name, called, member in calls(played(out, seed, arguments.rounds)):
            every.setdefault(name, []).append((called, member))
            value = membership.f1(called.astype(float), member).value
            print(f"seed {seed}, {name}: F1 {value:.2f}", flush=True)
    for name, seeds in every.items():
        runs = np.repeat(np.arange(len(seeds)), [len(member) for _, member in seeds])
        called, member = (np.concatenate(part) for part in zip(*seeds, strict=True))
        all_of = membership.f1(called.astype(float), member, runs=runs)
        print(f"{name}: F1 {all_of.value:.2f} [{all_of.low:.2f}, {all_of.high:.2f}], {len(seeds)} seeds")


if __name__ == "__main__":
    main()
