"""Read what one attack claimed in one federation, and what happened there, from the federation's folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import Claim, ClassRepresentatives, PriorSamples
from glasshouse.audit.attacking.claims import Outcome, Unit, read_outcome
from glasshouse.audit.attacking.needs import federation_of
from glasshouse.audit.scoring.nulls import NullBook
from glasshouse.audit.scoring.pair import longest_prefix
from glasshouse.audit.scoring.tasks import CellTask, attack_key
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.audit.simulation.record import GroupRecord
from glasshouse.cache import digest
from glasshouse.examples import join
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.metrics.base import Features, ScoreContext
from glasshouse.metrics.gallery import Gallery, owners_of
from glasshouse.modalities.sentence import vocabulary_of
from glasshouse.models.build import build, load
from glasshouse.models.perceptual import activations, network
from glasshouse.results.strength import Search
from glasshouse.results.vocabulary import WITHOUT_UPLOADS
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.store import read_tensors
from glasshouse.tensors import take_prefix
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Architecture, Batch, Broadcast


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The claims of one attack in one federation, beside what happened there.

    Attributes:
        folder: of the group.
        seed: of its federation.
        units: the units that it was called for, with their outcomes.
        ground: of the group.
        book: its null adversaries, with the attack's own prior as an additional one.
        searches: certificates of its claims, if the attack declares its loss.
        guarantee: of the federation's defences; None: they prove nothing.
    """

    folder: str
    seed: int
    units: Sequence[tuple[Unit, Outcome]]
    ground: GroundTruth
    book: NullBook
    searches: tuple[Search, ...] = ()
    guarantee: Guarantee | None = None

    @property
    def claims(self) -> list[Claim]:
        """The claims that are judged: of those that grow, the ones after the most rounds."""
        return [claim for outcome in self.outcomes for claim in longest_prefix(outcome.claims)]

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all units, in order."""
        return [outcome for _, outcome in self.units]


def read_runs(
    task: CellTask,
    position: int,
    records: Sequence[GroupRecord],
    ground_of: Callable[[Path], tuple[GroundTruth, NullBook]],
) -> Iterator[Run]:
    """The federations of a cell in which an attack ran, each with its claims and its ground truth.

    Args:
        task: the cell.
        position: of the attack in the scenario.
        records: of the cell's groups.
        ground_of: :func:`read_ground` of a group; all attacks of the cell share what it returns.
    """
    attack = task.cell.scenario.attacks[position]
    for group, record in zip(task.groups, records, strict=True):
        if group.active != federation_of(task.cell.scenario, position) or record.refusal is not None:
            continue
        ground, book = ground_of(Path(group.folder))
        folder = Path(group.folder) / "claims" / attack_key(position, attack)
        paths = sorted(folder.glob("*/claims.json"), key=_unit_order)
        units = [(Unit.named(path.parent.name), read_outcome(path.parent)) for path in paths]
        yield Run(
            folder=group.folder,
            seed=group.seed,
            units=units,
            ground=ground,
            book=with_prior(book, [outcome for _, outcome in units]),
            searches=tuple(s for path in paths for s in task.searches.get(str(path.parent), ())),
            guarantee=record.facts.guarantee,
        )


def with_prior(book: NullBook, outcomes: Sequence[Outcome]) -> NullBook:
    """The null adversaries of one attack; samples of its prior and its claims without uploads are more."""
    filed = [c for o in outcomes for c in o.claims if isinstance(c, PriorSamples)]
    if filed:
        book = replace(book, draws=join([Batch(inputs=c.inputs, labels=c.labels) for c in filed]))
    last = [c for o in outcomes for c in longest_prefix(o.uninformed) if isinstance(c, ClassRepresentatives)]
    if last:
        drawn = join([Batch(inputs=c.inputs, labels=c.labels) for c in last])
        book = replace(book, further={WITHOUT_UPLOADS: drawn})
    return book


def _unit_order(path: Path) -> tuple[int, ...]:
    return tuple(int("".join(ch for ch in part if ch.isdigit()) or 0) for part in path.parent.name.split("-"))


def read_ground(folder: Path, scenario: Scenario) -> tuple[GroundTruth, NullBook]:
    """The ground truth of the group in ``folder``, and the null adversaries on its auxiliary data."""
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
        inputs=transcript.terms.architecture.inputs,
        image_range=transcript.terms.architecture.inputs.range,
        gallery=gallery_of(tensors, truth),
        vocabulary=vocabulary_of(transcript.terms.architecture.inputs),
    )
    ground = GroundTruth(
        truth=truth,
        context=context,
        defense=" + ".join(d.name for d in scenario.defenses) or "none",
        terms=transcript.terms,
        announced=_announced_counts(transcript),
        heldout=_heldout(tensors),
        comparable=_same_classes(scenario),
        run=folder.name,
        weights=digest(_first_broadcast(transcript).tensors),
        adversary=scenario.threat.client,
    )
    # A stream of its own: what guessing reaches must not depend on what an attack drew.
    book = NullBook(
        modality=transcript.terms.architecture.inputs,
        auxiliary=_part(tensors, "auxiliary"),
        context=context,
        rng=Rng.root(scenario.seed, salt="judge"),
        among=scenario.audit.baselines,
        networks=_name_networks(transcript, tensors, ground.weights),
    )
    return ground, book


def _part(tensors: Mapping[str, Tensor], role: str) -> Batch | None:
    if f"{role}.inputs" not in tensors:
        return None
    return Batch(inputs=tensors[f"{role}.inputs"], labels=tensors[f"{role}.labels"])


def _heldout(tensors: Mapping[str, Tensor]) -> Batch | None:
    """The held-out examples, then the spare ones sampled in the same way."""
    parts = [part for part in (_part(tensors, "heldout"), _part(tensors, "spare")) if part is not None]
    if not parts:
        return None
    inputs, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "labels"))
    return Batch(inputs=inputs, labels=labels)


def _same_classes(scenario: Scenario) -> bool:
    """Whether held-out examples have the same distribution as private ones."""
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


def gallery_of(tensors: Mapping[str, Tensor], truth: Truth) -> Gallery | None:
    """The gallery that metrics of classes compare with; None: the federation has no private classes."""
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
    """The flat features of the first recorded broadcast model, which is built on first use."""
    broadcast = _first_broadcast(transcript)

    @cache
    def forward() -> Features:
        model = build(broadcast.architecture)
        own = model.state_dict()
        load(model, {n: t for n, t in broadcast.tensors.items() if n in own}, partial=True)
        of: Features = model.eval().representation  # type: ignore[assignment]  # a module's attribute has no type
        return of

    def features(images: Tensor) -> Tensor:
        with torch.no_grad():
            return forward()(images)

    return features


def _first_broadcast(transcript: Transcript) -> Broadcast:
    return next(b for record in transcript.rounds for b in record.broadcasts)


def _name_networks(transcript: Transcript, tensors: Mapping[str, Tensor], weights: str) -> str:
    """A digest of the first broadcast model and of the public network that metrics use."""
    public = {name: t for name, t in tensors.items() if name.startswith("stand_in.")}
    return digest([repr(_first_broadcast(transcript).architecture), weights, public])


def _public_network(tensors: Mapping[str, Tensor], agreed: Architecture) -> nn.Module | None:
    weights = take_prefix(tensors, "stand_in.")
    if not weights:
        return None
    model = build(network(agreed))
    load(model, weights)
    return model.eval()
