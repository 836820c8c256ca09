"""Collect the ground truth of a capture from the folders of test clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from glasshouse.cache import digest
from glasshouse.errors import BadFile, BadValue
from glasshouse.models.base import Normalize
from glasshouse.models.build import build, name_tensors
from glasshouse.store import read_json, write_tensors
from glasshouse.tensors import finite_fault
from glasshouse.transcript.files import read_transcript
from glasshouse.truth.record import Truth, Used, write_truth
from glasshouse.truth.recorded import read_recorded
from glasshouse.wire import Architecture, Batch

NODES: Final = "nodes.json"
"""The file of a capture that maps nodes to clients."""
_LEVELS: Final = 255
_ROUNDING: Final = 1e-4
"""Pixels within this distance of one of 256 levels are rounded to it."""


def collect(capture: Path, folders: Sequence[Path]) -> Truth:
    """Write ``capture/truth`` from the recordings of test clients, and return it.

    ``truth/sent`` contains the result of their training before masks, noise or clipping; it shows whether the
    declared terms are the real ones (:mod:`glasshouse.audit.captured.terms`).

    Args:
        capture: the folder of a capture.
        folders: given to ``truth_mod`` on each machine.

    Raises:
        BadFile: no capture, nothing recorded, or a client unknown to the server.
        BadValue: images that are not in [0, 1] after undoing the normalisation.
    """
    terms = read_transcript(capture / "transcript", trust_factory=True).terms
    architecture, apart = terms.architecture, (*terms.training.personal, *terms.training.fixed)
    clients = {node: int(client) for node, client in read_json(capture / NODES).items()}
    network = build(architecture)
    normalize = dict(network.named_children()).get("normalize")
    pool: dict[str, tuple[int, Tensor, Tensor]] = {}
    examples: dict[tuple[int, int], Used] = {}
    for one in (one for folder in folders for one in read_recorded(folder)):
        if one.node not in clients:
            raise BadFile(
                "truth of a capture",
                needs=f"batches of nodes that the server talked to: {', '.join(clients)}",
                got=f"node {one.node}",
                fix="give the folders of the clients of this run",
            )
        steps = []
        for batch in one.steps:
            inputs = batch.inputs if one.pixels else _without(normalize, batch.inputs)
            pairs = zip(_pixels(inputs, architecture), batch.labels, strict=True)
            steps.append(tuple(_row(image, label, pool) for image, label in pairs))
        key = one.round, clients[one.node]
        if one.sent and not finite_fault(one.sent):  # a broken result shows nothing about the terms
            write_tensors(sent_file(capture, *key), name_tensors(one.sent, network, apart=apart))
        examples[key] = Used(steps=tuple(steps), behaviour="honest")
    if not examples:
        raise BadFile(
            f"truth of capture '{capture}'",
            needs="batches that a test client recorded",
            got=f"none in {', '.join(map(str, folders))}",
            fix="give the folders that test clients were given",
        )
    _, images, labels = zip(*pool.values(), strict=True)
    truth = Truth(
        private=Batch(inputs=torch.stack(images), labels=torch.stack(labels)),
        shards={client: _shard(client, examples) for client in sorted({c for _, c in examples})},
        used=dict(sorted(examples.items())),
    )
    write_truth(truth, capture / "truth")
    return truth


def sent_file(capture: Path, number: int, client: int) -> Path:
    """The file with the collected result of a client's training in a round."""
    return capture / "truth" / "sent" / f"{number:06d}-{client}.safetensors"


def _shard(client: int, examples: dict[tuple[int, int], Used]) -> tuple[int, ...]:
    """All rows that the client used in any round."""
    return tuple(sorted({row for (_, c), one in examples.items() if c == client for row in one.rows()}))


def _row(image: Tensor, label: Tensor, pool: dict[str, tuple[int, Tensor, Tensor]]) -> int:
    """The row of an image in the pool, to which a new image is appended."""
    return pool.setdefault(f"{digest(image)} {int(label)}", (len(pool), image, label))[0]


def _without(normalize: object, inputs: Tensor) -> Tensor:
    """``inputs`` with the normalisation undone."""
    return inputs * normalize.std + normalize.mean if isinstance(normalize, Normalize) else inputs


def _pixels(inputs: Tensor, architecture: Architecture) -> Tensor:
    """``inputs`` as pixels; those of 8-bit images exactly.

    Raises:
        BadValue: they are outside [0, 1], or their shape is not that of the model's images.
    """
    low, high = float(inputs.min()), float(inputs.max())
    if tuple(inputs.shape[1:]) != architecture.input_shape or low < -_ROUNDING or high > 1 + _ROUNDING:
        raise BadValue(
            "images that test clients recorded",
            needs=f"images {architecture.input_shape} in [0, 1] once the model's normalisation is undone",
            got=f"{tuple(inputs.shape[1:])}, from {low:.3g} to {high:.3g}",
            fix="say what the app normalises with: adapt(network, normalize=(mean, std))",
        )
    levels = (inputs * _LEVELS).round() / _LEVELS
    exact = bool((levels - inputs).abs().max() < _ROUNDING)
    return (levels if exact else inputs).clamp(0, 1)
