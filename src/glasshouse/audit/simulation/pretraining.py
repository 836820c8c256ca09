"""The server's model before round 0, pre-trained on public data if requested.

In a transfer federation the whole agreed model is trained, or (``behind = "linear"``) its features with one
linear layer, as published feature extractors are; that layer is then discarded. Published features come from
a file (``model.weights``), which need not contain a head. The agreed head then starts untrained
or (``head_epochs``) fitted to the frozen features. See docs/decisions/0042. Training runs on the
device of the audit.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from glasshouse.cache import Checkpoint, digest, load_or_make
from glasshouse.errors import BadValue
from glasshouse.interfaces import traits_of
from glasshouse.models import build as models
from glasshouse.models.adversarial import Ascent, robust_accuracy
from glasshouse.models.base import Normalize, SplitModel, flat_size
from glasshouse.models.fit import accuracy, fit
from glasshouse.models.text.base import TextModel
from glasshouse.outside.weights import read_weights
from glasshouse.rng import Rng
from glasshouse.scenario.requirements import HEAD_IMAGES
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Pretraining
from glasshouse.settings import Recipe
from glasshouse.tensors import descend
from glasshouse.wire import Architecture, Batch

HEAD = "head."
"""Prefix of the names of the head's tensors; all others belong to the features."""
ROBUST = 500
"""Largest number of held-out images on which robust accuracy is measured."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """The initial state of a federation.

    Attributes:
        tensors: parameters and buffers of the agreed model.
        public: the model trained on public data that clients build on: the features with the layer they were
            trained with, or with the head that came with them or was fitted to them; None outside transfer
            federations, and for features with an untrained head.
    """

    tensors: dict[str, Tensor]
    public: nn.Module | None = None


def start_of(
    scenario: Scenario, architecture: Architecture, public: Batch | None, rng: Rng, *, device: str = "cpu"
) -> Start:
    """The server's model before round 0: untrained or from a file, and pre-trained if requested.

    Raises:
        BadValue: no data to train on, or tensors missing in the file; says what is missing.
    """
    model = models.build(architecture, rng=rng.child("model"))
    how, stream = scenario.model.pretraining, rng.child("pretraining")
    transfer = traits_of(scenario.federation.protocol).start == "features"
    # Weights from a file are the start as they are; only a missing head is fitted.
    if scenario.model.weights is not None:
        file_tensors = models.rename_tensors(architecture, read_weights(Path(scenario.model.weights)))
        headed = _load_file(model, file_tensors, transfer=transfer)
        if transfer and how.head_epochs:
            data = _require_public(public, "fitting of the head", "model.pretraining.head_epochs")
            _fit_head(model, data, how, rng=stream.child("head"))
        fitted = transfer and (headed or how.head_epochs)
        return Start(tensors=models.state(model), public=model if fitted else None)
    if how.epochs == 0:
        return Start(tensors=models.state(model))
    data = _require_public(public, "pre-training of the model", "model.pretraining.epochs")
    if not (transfer and how.behind == "linear"):
        models.load(model, train_publicly(model, architecture, data, how, rng=stream, device=device))
        return Start(tensors=models.state(model), public=model if transfer else None)
    # The backbone learns behind a linear head of its own, which clients never get.
    probe = _probe(model, architecture, rng=stream)
    models.load(probe, train_publicly(probe, architecture, data, how, rng=stream, device=device))
    if how.head_epochs:
        _fit_head(model, data, how, rng=stream.child("head"))
    return Start(tensors=models.state(model), public=probe)


def _load_file(model: nn.Module, tensors: Mapping[str, Tensor], *, transfer: bool) -> bool:
    """Load a file's tensors into ``model``; return whether it has a head, which only a transfer may lack."""
    if isinstance(model, TextModel):
        tensors = model.completed(tensors)
    headed = any(name.startswith(HEAD) for name in tensors)
    fresh = {name: t for name, t in models.state(model).items() if name.startswith(HEAD)}
    models.load(model, {**fresh, **tensors} if transfer and not headed else tensors)
    return headed


def _require_public(public: Batch | None, subject: str, key: str) -> Batch:
    if public is None or len(public) == 0:
        raise BadValue(
            subject, needs="public data", got="data.public = 0", fix=f"set data.public, or {key} = 0"
        )
    return public


def train_publicly(
    model: nn.Module,
    architecture: Architecture,
    data: Batch,
    how: Pretraining,
    *,
    rng: Rng,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Train ``model`` on ``data``, or load the result from the cache."""
    start = models.state(model)

    def make(checkpoint: Checkpoint) -> dict[str, Tensor]:
        model.to(device)
        fit(model, data, how, rng=rng, checkpoint=checkpoint, perturb=ascent_of(how), label="pre-training")
        return models.state(model.to("cpu"))

    key = {
        "architecture": repr(architecture),
        "start": digest(start),
        "data": digest({"inputs": data.inputs, "labels": data.labels}),
        "how": _cache_key(how),
        "rng": rng.seed(),
    }
    return load_or_make("pretraining", key, make)


def measure_accuracy(start: Start, heldout: Batch | None, *, device: str = "cpu") -> dict[str, float] | None:
    """Natural and PGD-10 accuracy of the public features with the layer they were trained with, if any."""
    probe = start.public
    if probe is None or heldout is None:
        return None
    sample = heldout.pick(torch.arange(min(ROBUST, len(heldout))))

    def make(_: Checkpoint) -> dict[str, Tensor]:
        probe.to(device)
        robust = robust_accuracy(probe, sample, rng=Rng.root(0, salt="robust accuracy"))
        shares = torch.tensor([accuracy(probe, heldout), robust], dtype=torch.float64)
        probe.to("cpu")
        return {"found": shares}

    key = {"model": models.state(probe), "data": heldout.inputs, "labels": heldout.labels, "few": len(sample)}
    natural, robust = load_or_make("robustness", key, make)["found"].tolist()
    return {"natural": natural, "n": len(heldout), "robust": robust, "n_robust": len(sample)}


def _probe(model: nn.Module, architecture: Architecture, *, rng: Rng) -> SplitModel:
    """The same features (shared, not copied) with one new linear layer."""
    parts = dict(model.named_children())
    normalize = parts.get("normalize")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("probe").seed())
        head = nn.Linear(flat_size(parts["features"], architecture.input_shape), architecture.classes)
    return SplitModel(
        normalize=normalize if isinstance(normalize, Normalize) else Normalize(mean=0.0, std=1.0),
        features=parts["features"],
        head=head,
    )


def _fit_head(model: nn.Module, public: Batch, how: Pretraining, *, rng: Rng) -> None:
    """Train ``head`` in place with Adam on the frozen features, or load the result from the cache."""
    parts = dict(model.named_children())
    head, sample = parts["head"], public.pick(torch.arange(min(HEAD_IMAGES, len(public))))
    start = models.state(model)

    def make(_: Checkpoint) -> dict[str, Tensor]:
        # The features are frozen: one pass serves all epochs.
        with torch.no_grad():
            chunks = torch.split(sample.inputs, 256)
            inside = parts.get("normalize", nn.Identity())
            features = torch.cat([parts["features"].eval()(inside(x)) for x in chunks])
        optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
        for epoch in range(how.head_epochs):
            order = torch.randperm(len(sample), generator=rng.child(f"epoch/{epoch}").torch())
            for rows in torch.split(order, 64):
                loss = functional.cross_entropy(head(features[rows]), sample.labels[rows])
                descend(optimizer, loss)
        return models.state(head)

    # All that the result depends on: what is found in the cache is what would be trained.
    key = {
        "start": digest(start),
        "data": sample.inputs,
        "labels": sample.labels,
        "epochs": how.head_epochs,
        "rng": rng.seed(),
    }
    models.load(head, load_or_make("head", key, make))


def ascent_of(how: Pretraining) -> Ascent | None:
    """How adversarial examples are generated during training; None: not used."""
    against = how.adversarial
    if against.method == "none":
        return None
    return Ascent(method=against.method, radius=against.radius / 255, step=against.step, steps=against.steps)


def _cache_key(how: Pretraining) -> dict[str, Any]:
    """The cache key: everything that influences the training, and nothing that is only used afterwards."""
    against = ascent_of(how)
    adversary = None if against is None else {**asdict(against), "step": against.share}
    return how.model_dump(include=set(Recipe.model_fields)) | {"adversarial": adversary}
