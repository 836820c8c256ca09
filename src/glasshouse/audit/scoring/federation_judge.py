"""Build the judge of a federation from its folder: messages and ground truth."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from glasshouse.audit.scoring.judge import Judge
from glasshouse.audit.scoring.nulls import join_batches
from glasshouse.cache import digest
from glasshouse.metrics.base import Features, ScoreContext
from glasshouse.metrics.gallery import Gallery, owners_of
from glasshouse.modalities.sentence import vocabulary_of
from glasshouse.models.build import build, load
from glasshouse.models.perceptual import activations, network
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.store import read_tensors
from glasshouse.tensors import take_prefix
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Architecture, Batch, Broadcast


def judge_of(folder: Path, scenario: Scenario) -> Judge:
    """The judge of the group in ``folder``: ground truth, distractors, networks, own random stream."""
    truth = read_truth(folder / "truth")
    tensors = read_tensors(folder / "truth" / "scoring.safetensors")
    transcript = read_transcript(folder / "transcript", trust_factory=True, contents=False)
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
        networks=_name_networks(transcript, tensors),
        run=folder.name,
    )


def _part(tensors: Mapping[str, Tensor], role: str) -> Batch | None:
    if f"{role}.inputs" not in tensors:
        return None
    return Batch(inputs=tensors[f"{role}.inputs"], labels=tensors[f"{role}.labels"])


def _heldout(tensors: Mapping[str, Tensor]) -> Batch | None:
    """The held-out examples, then the spare ones sampled in the same way."""
    parts = [part for part in (_part(tensors, "heldout"), _part(tensors, "spare")) if part is not None]
    return join_batches(parts) if parts else None


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


def _name_networks(transcript: Transcript, tensors: Mapping[str, Tensor]) -> str:
    """A digest of the first broadcast model and of the public network that metrics use."""
    sent = _first_broadcast(transcript)
    public = {name: t for name, t in tensors.items() if name.startswith("stand_in.")}
    return digest([repr(sent.architecture), dict(sent.tensors), public])


def _public_network(tensors: Mapping[str, Tensor], agreed: Architecture) -> nn.Module | None:
    weights = take_prefix(tensors, "stand_in.")
    if not weights:
        return None
    model = build(network(agreed))
    load(model, weights)
    return model.eval()
