"""The scoring side of a group, read back from its folder."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from glasshouse.audit.scoring.score import Judge
from glasshouse.metrics.base import Features, ScoreContext
from glasshouse.metrics.gallery import Gallery, owners_of
from glasshouse.models.build import build, load
from glasshouse.models.perceptual import activations, network
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.store import read_tensors
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Architecture, Batch


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
    )
    auxiliary = None
    if "auxiliary.inputs" in tensors:
        auxiliary = Batch(inputs=tensors["auxiliary.inputs"], labels=tensors["auxiliary.labels"])
    return Judge(
        truth=truth,
        context=context,
        auxiliary=auxiliary,
        rng=Rng.root(scenario.seed, salt="judge"),
        among=scenario.audit.baselines,
        defense=" + ".join(d.name for d in scenario.defenses) or "none",
    )


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
    weights = {n.removeprefix("perceptual."): t for n, t in tensors.items() if n.startswith("perceptual.")}
    if not weights:
        return None
    model = build(network(agreed.input_shape, agreed.classes))
    load(model, weights)
    return model.eval()
