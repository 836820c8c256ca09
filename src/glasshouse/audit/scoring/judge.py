"""The scoring side of a group: truth, what metrics need beside it, null adversaries, other victims."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import About, PriorSamples
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.claims.truths import exchange_classes
from glasshouse.audit.scoring.nulls import EXAMPLES, choose_null, largest_share
from glasshouse.cache import digest
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Features, Metric, ScoreContext
from glasshouse.metrics.gallery import Gallery, owners_of
from glasshouse.models.build import build, load
from glasshouse.models.perceptual import activations, network
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.store import read_tensors
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Architecture, Batch, Terms

SHIFTS: Final = 3
"""Other victims that a claim is scored against, at most; fewer for large batches."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What one claim is compared with.

    Attributes:
        batch: the examples.
        owners: the client of each, (B,); -1: nobody's.
    """

    batch: Batch
    owners: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """The scoring side of one group.

    Attributes:
        truth: of the group.
        context: for the metrics.
        auxiliary: what null adversaries know.
        rng: for the draws of null adversaries; unrelated to the attacks' streams.
        among: names of the null adversaries to choose from; empty: all that fit.
        quoted: null already chosen, by metric name and batch size.
        most: of these nulls, the most that their share can be as far as the auxiliary part tells.
        draws: of the prior of the attack that is judged, where it filed some.
        defense: names of the defences that are on, joined by " + "; "none" without.
        terms: of the federation; None: unknown, and silence is scored at chance level.
        announced: examples behind a message as the wire says, by round and client (None: the whole round).
        heldout: examples of nobody, to exchange victims with and to rank them among; None: none.
        comparable: the held-out examples are of the same classes as the private ones.
        run: names the federation; claims of one run about the same clients are no further clients.
        moved: judges with the private classes exchanged, by how far.
    """

    truth: Truth
    context: ScoreContext
    auxiliary: Batch | None
    rng: Rng
    among: tuple[str, ...] = ()
    quoted: dict[tuple[str, int], str] = field(default_factory=dict)
    most: dict[tuple[str, int], float | None] = field(default_factory=dict)
    draws: Batch | None = None
    defense: str = "none"
    terms: Terms | None = None
    announced: Mapping[tuple[int, int | None], int] = field(default_factory=dict)
    heldout: Batch | None = None
    comparable: bool = True
    run: str = ""
    moved: dict[int, "Judge"] = field(default_factory=dict)

    def null(self, name: str, metric: Metric, count: int) -> str:
        """Name of the null that is quoted for this metric and batch size.

        Raises:
            Undefined: no auxiliary data to choose on.
        """
        if self.auxiliary is None:
            raise Undefined(
                f"null baseline of metric '{name}'",
                needs="auxiliary data",
                got="none",
                fix="set data.auxiliary: a number without a null adversary beside it proves nothing",
            )
        if (name, count) not in self.quoted:
            stream = self.rng.child(f"null/{name}/{count}")
            self.quoted[name, count] = choose_null(
                metric,
                self.auxiliary,
                count=count,
                context=self.context,
                rng=stream,
                among=self.among,
                draws=self.draws,
            )
        return self.quoted[name, count]

    def null_most(self, name: str, metric: Metric, count: int) -> float | None:
        """The most that the share of the quoted null can be; None where that is not known."""
        quoted = self.null(name, metric, count)
        assert self.auxiliary is not None  # null has checked
        if (name, count) not in self.most:
            self.most[name, count] = largest_share(
                quoted,
                metric,
                self.auxiliary,
                count=count,
                context=self.context,
                rng=self.rng.child(f"null/{name}/{count}"),
                draws=self.draws,
            )
        return self.most[name, count]

    def against(self, truth: Truth) -> "Judge":
        """The same judge with another truth; the nulls chosen so far stay."""
        gallery = self.context.gallery
        other = None if gallery is None else gallery.holding(truth.private, truth.shards)
        return dataclasses.replace(
            self, truth=truth, context=dataclasses.replace(self.context, gallery=other), moved={}
        )

    def with_classes_moved(self, by: int) -> "Judge":
        """The same judge with every private class's images exchanged for another's, ``by`` places on."""
        if by not in self.moved:
            self.moved[by] = self.against(exchange_classes(self.truth, by=by))
        return self.moved[by]

    def of(self, outcomes: Iterable[Outcome]) -> "Judge":
        """The judge of one attack: with the samples of its prior that it filed as a further null."""
        filed = [c for o in outcomes for c in o.claims if isinstance(c, PriorSamples)]
        if not filed:
            return self
        draws = Batch(
            inputs=torch.cat([c.inputs for c in filed]), labels=torch.cat([c.labels for c in filed])
        )
        return dataclasses.replace(self, draws=draws, quoted={}, most={})

    def target(self, number: int, client: int | None) -> Target:
        """The truth behind one round of a claim."""
        batch, owners = self.truth.batch(number, client)
        return Target(batch=batch, owners=owners)

    def announced_for(self, about: About) -> int:
        """The number of examples a claim may cover: what the wire announces, and at least the true number."""
        return sum(
            max(self.announced.get((number, about.client), 0), len(self.target(number, about.client).batch))
            for number in about.rounds
        )

    def others(self, about: About, number: int) -> tuple[Target, ...]:
        """Up to ``SHIFTS`` other victims for round ``number`` of a claim: not one example of it among theirs.

        The next ones in order, cyclically; without any, held-out examples; without those, nobody.
        """
        size = len(self.truth.batch(number, about.client)[0])
        how_many = max(1, min(SHIFTS, EXAMPLES // size))
        own = {p for r in about.rounds for p in self._behind(r, about.client)}
        keys: list[tuple[int, int | None]] = sorted(
            {(r, None if about.client is None else c) for r, c in self.truth.used},
            key=lambda key: (key[0], -1 if key[1] is None else key[1]),
        )
        after = keys.index((number, about.client)) + 1
        different = [key for key in keys[after:] + keys[:after] if own.isdisjoint(self._behind(*key))]
        if different:
            return tuple(self.target(*key) for key in different[:how_many])
        return self._strangers(size, how_many)

    def _strangers(self, size: int, number: int) -> tuple[Target, ...]:
        if self.heldout is None:
            return ()
        whole = [
            torch.arange(i * size, (i + 1) * size) for i in range(min(number, len(self.heldout) // size))
        ]
        rows = whole or [torch.arange(len(self.heldout))]
        return tuple(
            Target(batch=self.heldout.pick(index), owners=torch.full((len(index),), -1)) for index in rows
        )

    def _behind(self, number: int, client: int | None) -> set[str]:
        """Fingerprints of the images behind one update, or a whole round."""
        keys = [k for k in self.truth.used if k[0] == number and client in (None, k[1])]
        return {self._prints[row] for key in keys for row in self.truth.used[key].rows()}

    @cached_property
    def _prints(self) -> tuple[str, ...]:
        return tuple(digest(image) for image in self.truth.private.inputs)


def judge_of(folder: Path, scenario: Scenario) -> Judge:
    """The judge of the group in ``folder``: its truth, distractors, networks, and a stream of its own."""
    truth = read_truth(folder / "truth")
    tensors = read_tensors(folder / "truth" / "scoring.safetensors")
    transcript = read_transcript(folder / "transcript", trust_factory=True)
    public = _public_network(tensors, transcript.terms.architecture)
    context = ScoreContext(
        distractors=tensors.get("distractors"),
        features=_representation(transcript),
        perceptual=None if public is None else lambda images: activations(public, images),
        classify=None if public is None else lambda images: public(images).argmax(1),
        classes=transcript.terms.architecture.classes,
        image_range=transcript.terms.image_range,
        gallery=_gallery(tensors, truth),
        vocabulary=transcript.terms.architecture.vocabulary,
    )
    return Judge(
        truth=truth,
        context=context,
        auxiliary=_part(tensors, "auxiliary"),
        rng=Rng.root(scenario.seed, salt="judge"),
        among=scenario.audit.baselines,
        defense=" + ".join(d.name for d in scenario.defenses) or "none",
        terms=transcript.terms,
        announced=_announced_counts(transcript),
        heldout=_heldout(tensors),
        comparable=_same_classes(scenario),
        run=folder.name,
    )


def _part(tensors: Mapping[str, Tensor], role: str) -> Batch | None:
    if f"{role}.inputs" not in tensors:
        return None
    return Batch(inputs=tensors[f"{role}.inputs"], labels=tensors[f"{role}.labels"])


def _heldout(tensors: Mapping[str, Tensor]) -> Batch | None:
    """The held-out examples, then the spare ones that were drawn like them."""
    parts = [part for part in (_part(tensors, "heldout"), _part(tensors, "spare")) if part is not None]
    if not parts:
        return None
    return Batch(inputs=torch.cat([p.inputs for p in parts]), labels=torch.cat([p.labels for p in parts]))


def _same_classes(scenario: Scenario) -> bool:
    """Whether held-out examples are drawn like private ones."""
    data = scenario.data
    return not data.private_source and set(data.private_classes) == set(data.heldout_classes)


def _announced_counts(transcript: Transcript) -> dict[tuple[int, int | None], int]:
    counts: dict[tuple[int, int | None], int] = {}
    for record in transcript.rounds:
        for update in record.updates:
            counts[record.round, update.client] = update.examples
        if record.aggregate is not None:
            counts[record.round, None] = record.aggregate.examples
        elif record.updates:
            counts[record.round, None] = sum(update.examples for update in record.updates)
    return counts


def _gallery(tensors: Mapping[str, Tensor], truth: Truth) -> Gallery | None:
    if "gallery.people" not in tensors:
        return None
    top, bottom = tensors["gallery.rows"].tolist()
    targets = int(tensors["gallery.targets"])
    return Gallery(
        people=tensors["gallery.people"],
        known=tensors["gallery.known"].bool(),
        public=tensors["gallery.public"],
        targets=targets,
        rows=(top, bottom),
        prior=tensors["gallery.prior"],
        owners=owners_of(truth.private, truth.shards, targets),
        classes=tuple(tensors["gallery.classes"].tolist()),
    )


def _representation(transcript: Transcript) -> Features:
    """The flat features of the first model sent that the transcript kept."""
    broadcast = next(b for record in transcript.rounds for b in record.broadcasts)
    model = build(broadcast.architecture)
    own = model.state_dict()
    load(model, {n: t for n, t in broadcast.tensors.items() if n in own}, partial=True)
    forward: Features = model.eval().representation  # type: ignore[assignment]  # a module's attribute has no type

    def features(images: Tensor) -> Tensor:
        with torch.no_grad():
            return forward(images)

    return features


def _public_network(tensors: Mapping[str, Tensor], agreed: Architecture) -> nn.Module | None:
    weights = {n.removeprefix("stand_in."): t for n, t in tensors.items() if n.startswith("stand_in.")}
    if not weights:
        return None
    model = build(network(agreed.image_shape, agreed.classes))
    load(model, weights)
    return model.eval()
