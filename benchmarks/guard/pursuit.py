"""The guard against crafted kinds, against models trained to pass it, in an honest zoo, and its cost.

``python -m benchmarks.guard pursuit kinds|hidden|delayed|columns|recall|adaptive|zoo|cost --out FILE``
appends a line of JSON per model; models that the file has already are not made again.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard import check_cost, columns, delayed, kinds
from benchmarks.guard.adaptive import STARTS, train_against
from benchmarks.guard.architectures import ARCHITECTURES
from benchmarks.guard.hidden import HIDDEN
from benchmarks.guard.parametrised import PARAMETRISED
from glasshouse.errors import BadValue
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import preflight
from glasshouse.guard.pursued import Memory
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.found import MEASURES
from glasshouse.guard.pursuit.fresh import initialise_again
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.guard.watch import watch

DATA = Path("../shared/data")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 2])
    parser.add_argument("--minutes", type=int, default=30, help="adaptive: CPU minutes of training")
    parser.add_argument("--starts", type=int, nargs="*", help="adaptive: only these of its starts")
    parser.add_argument("--only", nargs="*", help="zoo: these architectures alone")
    parser.add_argument("--data", nargs="*", choices=list(DATA_SETS), default=list(DATA_SETS), help="zoo")
    options = parser.parse_args()
    known = set()
    if options.out.exists():
        known = {json.loads(line)["name"] for line in options.out.read_text().splitlines()}
    for line in PARTS[options.part](options, known):
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def cifar(split: str) -> tuple[Tensor, Tensor]:
    """Pictures (N, 3, 32, 32) in [0, 1] and classes."""
    data = np.load(DATA / "cifar10_12k.npz")
    pictures = torch.from_numpy(data[f"{split}_images"]).permute(0, 3, 1, 2).float() / 255
    return pictures, torch.from_numpy(data[f"{split}_labels"]).long().flatten()


@dataclass(frozen=True, kw_only=True)
class Made:
    """A crafted model that is to be judged."""

    key: str
    case: kinds.Case
    dealt: kinds.Pictures
    own: Own
    seed: int


def made(
    options: argparse.Namespace, known: set[str], table: Mapping[str, Callable[[Tensor, int], kinds.Case]]
) -> Iterator[Made]:
    """The crafted models of a table on test pictures, of every seed; those that are known are left out."""
    for seed in range(*options.seeds):
        dealt = kinds.pictures(*cifar("test"), seed)
        own = Own(inputs=dealt.own[0], targets=dealt.own[1])
        for name, make in table.items():
            key = f"{name}, seed {seed}"
            if key not in known:
                yield Made(key=key, case=make(dealt.known, seed), dealt=dealt, own=own, seed=seed)


def judge_kinds(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """Each crafted kind on test pictures: what is read, of its honest twin too, and what the guard says."""
    ranges: dict[str, HonestRanges] = {}
    for one in made(options, known, kinds.KINDS):
        form = f"{one.case.model.form} {one.case.model.activation.__name__} {one.seed}"
        honest = ranges.setdefault(form, HonestRanges.of(one.case.model, one.own))
        yield {"name": one.key, **judge_case(one.case, one.dealt, one.own, honest, one.seed)}


def judge_hidden(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """The same for the disguises of :mod:`benchmarks.guard.hidden`, and behind parametrised weights."""
    table: dict[str, Any] = {**HIDDEN, **PARAMETRISED}
    for one in made(options, known, table):
        honest = HonestRanges.of(one.case.model, one.own)
        yield {"name": one.key, **judge_case(one.case, one.dealt, one.own, honest, one.seed)}


def judge_delayed(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """What opens in the course of local training: read from the whole change, and what the guard says."""
    for one in made(options, known, delayed.DELAYED):
        case, batch = one.case, one.dealt.batch
        twin, _ = initialise_again(case.model, seed=100 + one.seed)
        line: dict[str, Any] = {"name": one.key}
        trained = copy.deepcopy(twin)
        delayed.train(trained, batch)
        usual, usual_clear = kinds.read(case, [delayed.change(twin, trained)], batch[0], singles=True)
        # A client that watches its training sees what opens before it sends.
        trained = copy.deepcopy(case.model)
        with watch(trained) as watched:
            delayed.train(trained, batch)
        update = delayed.change(case.model, trained)
        seen, clear = kinds.read(case, [update], batch[0])
        shares = {"read_18": seen, "read_30": clear, "honest_read_18": usual, "honest_read_30": usual_clear}
        line |= {name: float(each.double().mean()) for name, each in shares.items()}
        outcome = preflight(update, case.model, *batch, watched=watched)
        named = {leak.example for leak in outcome.leaks} & set(clear.nonzero()[:, 0].tolist())
        judged = inspect_in_modes(case.model, one.own, honest=HonestRanges.of(case.model, one.own))
        line |= {"verdict": judged.verdict, "findings": judged.findings}
        yield {**line, "read_clear": int(clear.sum()), "named_of_clear": len(named)}


def judge_columns(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """Gated columns and honest twins: what is read at 30 dB, the verdict, who is named, what is left."""
    for seed in range(*options.seeds):
        dealt = kinds.pictures(*cifar("test"), seed)
        own = Own(inputs=dealt.own[0], targets=dealt.own[1])
        memory = Memory(others=(own.inputs[:128], own.targets[:128]))
        for form, how in columns.FORMS.items():
            crafted = columns.gated(dealt.known, seed, how)
            models = {"crafted": crafted, "twin": initialise_again(crafted, seed=100 + seed)[0]}
            keys = {what: f"{form}, {what}, seed {seed}" for what in models}
            if known >= set(keys.values()):
                continue
            honest = HonestRanges.of(crafted, own)
            for what, model in models.items():
                assert isinstance(model, columns.Gated)
                update = columns.update_of(model, dealt.batch)
                clear = set(columns.read(model, update, dealt.batch[0]).nonzero()[:, 0].tolist())
                judged = inspect_in_modes(model, own, honest=honest)
                mitigated = mitigate(update, model, dealt.batch, kind="gradient", memory=memory)
                named, closed = set(mitigated.before.standing("features")), mitigated.update
                left = None if closed is None else columns.read(model, closed, dealt.batch[0])
                yield {
                    "name": keys[what],
                    "read_30": len(clear),
                    "verdict": judged.verdict,
                    "findings": judged.findings,
                    "named": len(named),
                    "named_of_read": len(named & clear),
                    "could_not_look": mitigated.before.hidden,
                    "left_30": None if left is None else int(left.sum()),
                }


def judge_case(
    case: kinds.Case, dealt: kinds.Pictures, own: Own, honest: HonestRanges, seed: int
) -> dict[str, Any]:
    """One crafted model, and its honest twin read with the same read-outs and with single rows."""
    models = [m for m in (case.earlier, case.model) if m is not None]
    updates = kinds.gradients(models, dealt.batch)
    seen, clear = kinds.read(case, updates, dealt.batch[0])
    twin, _ = initialise_again(case.model, seed=100 + seed)
    answers = kinds.gradients([twin for _ in models], dealt.batch)
    usual, usual_clear = kinds.read(case, answers, dealt.batch[0], singles=True)
    strangers = own.inputs[-kinds.BATCH :]  # not in the update: what resembles them is no leak
    null, null_clear = kinds.read(case, updates, strangers)
    twin_null, twin_null_clear = kinds.read(case, answers, strangers, singles=True)
    started = time.process_time()
    earlier = () if case.earlier is None else (case.earlier,)
    judged = inspect_in_modes(case.model, own, honest=honest, earlier=earlier)
    seconds = time.process_time() - started
    memory = _memory(case, own, updates)
    outcome = preflight(updates[-1], case.model, *dealt.batch, kind="gradient", memory=memory)
    named = {leak.example for leak in outcome.leaks}
    closed = mitigate(updates[-1], case.model, dealt.batch, kind="gradient", memory=memory)
    left, left_clear = 0.0, 0.0
    if closed.update is not None:
        last = [*updates[:-1], closed.update]
        left, left_clear = (float(t.double().mean()) for t in kinds.read(case, last, dealt.batch[0]))
    both = seen.nonzero()[:, 0].tolist()
    alone = set(kinds.read_only_with(case, models, dealt.batch).nonzero()[:, 0].tolist())
    return {
        "read_18": float(seen.double().mean()),
        "read_30": float(clear.double().mean()),
        "null_18": float(null.double().mean()),
        "null_30": float(null_clear.double().mean()),
        "honest_18": float(usual.double().mean()),
        "honest_30": float(usual_clear.double().mean()),
        "honest_null_18": float(twin_null.double().mean()),
        "honest_null_30": float(twin_null_clear.double().mean()),
        "verdict": judged.verdict,
        "findings": judged.findings,
        **{m: judged.values.get(m) for m in ("excess", "excess_limit", "crowds", "crowds_limit")},
        "rounds_excess": judged.values.get("rounds_excess"),
        "read": len(both),
        "named_of_read": len(named & set(both)),
        "read_only_with_own": len(alone),
        "named_of_these": len(named & alone),
        "named": len(named),
        "remedy": closed.remedy if closed.update is not None else "not sent",
        "read_clear": int(clear.sum()),
        "named_of_clear": len(named & set(clear.nonzero()[:, 0].tolist())),
        "left_18": left,
        "left_30": left_clear,
        "seconds": seconds,
    }


def _memory(case: kinds.Case, own: Own, updates: list[dict[str, Tensor]]) -> Memory:
    sent = updates[0] if case.earlier is not None else None
    return Memory(others=(own.inputs[:128], own.targets[:128]), model=case.earlier, sent=sent)


def recall(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """What preflight names of each crafted kind, beside what is read, without the guard before training."""
    for seed in range(*options.seeds):
        dealt = kinds.pictures(*cifar("test"), seed)
        for name, make in kinds.KINDS.items():
            key = f"{name}, seed {seed}"
            if key in known:
                continue
            case = make(dealt.known, seed)
            models = [m for m in (case.earlier, case.model) if m is not None]
            updates = kinds.gradients(models, dealt.batch)
            memory = _memory(case, Own(inputs=dealt.own[0], targets=dealt.own[1]), updates)
            outcome = preflight(updates[-1], case.model, *dealt.batch, kind="gradient", memory=memory)
            named = torch.zeros(kinds.BATCH, dtype=torch.bool)
            named[[leak.example for leak in outcome.leaks]] = True
            seen, clear = kinds.read(case, updates, dealt.batch[0])
            alone = kinds.read_only_with(case, models, dealt.batch)
            counts = {"read 18": seen, "read 30": clear, "read only with own": alone}
            yield {
                "name": key,
                "named": int(named.sum()),
                "named, not read": int((named & ~seen).sum()),
                **{what: [int((t & named).sum()), int(t.sum())] for what, t in counts.items()},
            }


def adapt(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """Crafted models as they start, and trained against the guard: :mod:`benchmarks.guard.adaptive`."""
    for seed in range(*options.seeds):
        dealt = kinds.pictures(*cifar("test"), 50 + seed)
        own = Own(inputs=dealt.own[0], targets=dealt.own[1])
        servers = Own(inputs=dealt.known, targets=dealt.labels)
        for number, (name, make) in enumerate(STARTS.items()):
            for minutes in dict.fromkeys((0, options.minutes)):
                key = f"{name}, {minutes} minutes, seed {seed}"
                if key in known or (options.starts and number not in options.starts):
                    continue
                case = make(dealt.known, seed)
                if minutes and case.earlier is not None:
                    continue  # one model is trained
                if minutes:
                    state = options.out.with_name(f"{options.out.stem}-{number}-{seed}.safetensors")
                    case = train_against(case, servers, seconds=60 * minutes, state=state)
                yield {"name": key, **judge_case(case, dealt, own, HonestRanges.of(case.model, own), seed)}


def zoo(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """Honest models: data sets x architectures x states; every verdict is written down."""
    for seed in range(*options.seeds):
        for data in options.data:
            small, labels = DATA_SETS[data]()
            order = torch.randperm(len(small), generator=torch.Generator().manual_seed(seed))
            own = Own(inputs=small[order[:512]], targets=labels[order[:512]])
            elsewhere = Own(inputs=small[order[512:1536]], targets=labels[order[512:1536]])
            for name, make in ARCHITECTURES.items():
                keys = [f"{name}, {state}, {data}, seed {seed}" for state in STATES]
                if known >= set(keys) or (options.only and name not in options.only):
                    continue
                torch.manual_seed(7000 + seed)
                model = make()
                honest = HonestRanges.of(model, own)
                for key, one in zip(keys, states_of(model, elsewhere), strict=True):
                    if key not in known:
                        yield {"name": key, **_verdict(one, own, honest)}


def _verdict(model: nn.Module, own: Own, honest: HonestRanges) -> dict[str, Any]:
    started = time.process_time()
    try:
        judged = inspect_in_modes(model, own, honest=honest)
    except BadValue as error:  # its own training had diverged: it is no honest model
        return {"verdict": "diverged", "findings": [str(error)], "coverage": "", "reason": ""}
    return {
        "verdict": judged.verdict,
        "findings": judged.findings,
        "coverage": judged.coverage,
        "reason": judged.reason,
        **{m: judged.values.get(m) for m in MEASURES},
        "seconds": time.process_time() - started,
    }


def _pictures_of(file: str, part: str) -> tuple[Tensor, Tensor]:
    """Pictures (N, 3, 16, 16) in [0, 1] and classes."""
    data = np.load(DATA / file)
    pictures = torch.from_numpy(data[f"{part}_images"]).float() / 255
    pictures = pictures.movedim(-1, 1) if pictures.ndim == 4 else pictures[:, None]
    small = F.adaptive_avg_pool2d(pictures, kinds.SIDE).expand(-1, 3, -1, -1)
    return small.contiguous(), torch.from_numpy(data[f"{part}_labels"]).long().flatten()


DATA_SETS: Mapping[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "CIFAR-10": lambda: _pictures_of("cifar10_12k.npz", "test"),
    "MNIST": lambda: _pictures_of("mnist_10k.npz", "test"),
    "chest x-rays": lambda: _pictures_of("chest_xray_28.npz", "train"),
}


STATES = ("fresh", "3 steps", "30 steps", "100 steps", "half pruned", "8 bits", "two classes")


def states_of(model: nn.Module, own: Own) -> Iterator[nn.Module]:
    """An honest model in each of ``STATES``, trained on ``own``."""
    yield model
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 101):
        _step(trained, optimizer, own, generator)
        if step in (3, 30, 100):
            yield copy.deepcopy(trained)
    yield _each(trained, lambda t: t * (t.abs() >= t.abs().flatten().median()))
    yield _each(trained, lambda t: (t / t.abs().max().clamp_min(1e-9) * 127).round() / 127 * t.abs().max())
    two = own[(own.targets < 2).nonzero()[:, 0]]
    for _ in range(30):
        _step(trained, optimizer, two, generator)
    yield trained


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, own: Own, generator: torch.Generator) -> None:
    rows = torch.randint(len(own), (64,), generator=generator)
    optimizer.zero_grad()
    torch.autograd.backward(F.cross_entropy(model(own.inputs[rows]), own.targets[rows]))
    optimizer.step()


def _each(model: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    work = copy.deepcopy(model)
    with torch.no_grad():
        for p in work.parameters():
            if p.ndim > 1:
                p.copy_(change(p))
    return work


PARTS: Mapping[str, Callable[[argparse.Namespace, set[str]], Iterator[dict[str, Any]]]] = {
    "kinds": judge_kinds,
    "hidden": judge_hidden,
    "delayed": judge_delayed,
    "columns": judge_columns,
    "recall": recall,
    "adaptive": adapt,
    "zoo": zoo,
    "cost": check_cost.cost,
}
