"""Collect the ground truth of a capture from the folders of test clients."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from glasshouse.audit.captured.documents import people_behind, targets_of
from glasshouse.audit.captured.origins import repair, require_capture
from glasshouse.cache import digest
from glasshouse.errors import BadFile, BadValue
from glasshouse.models.base import Normalize
from glasshouse.models.build import build, name_tensors
from glasshouse.store import read_json, write_tensors
from glasshouse.tensors import finite_fault
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, Used, write_truth
from glasshouse.truth.recorded import Recorded, read_recorded
from glasshouse.wire import Architecture, Batch

_LOG = logging.getLogger(__name__)
NODES: Final = "nodes.json"
"""The file of a capture that maps nodes to clients."""


def collect(capture: Path, folders: Sequence[Path]) -> Truth:
    """Write ``capture/truth`` from the recordings of test clients, and return it.

    ``truth/sent`` contains the result of their training before masks, noise or clipping; it shows whether the
    declared terms are the real ones (:mod:`glasshouse.audit.captured.terms`).

    Args:
        capture: the folder of a capture.
        folders: given to ``truth_mod`` on each machine.

    Raises:
        BadFile: no capture, nothing recorded, or a client unknown to the server.
        BadValue: examples that are not those of the model, such as pictures normalised otherwise.
    """
    require_capture(capture)
    transcript = read_transcript(capture / "transcript", trust_factory=True)
    terms = transcript.terms
    architecture, apart = terms.architecture, (*terms.training.personal, *terms.training.fixed)
    clients = {node: int(client) for node, client in read_json(capture / NODES).items()}
    network = build(architecture)
    normalize = dict(network.named_children()).get("normalize")
    pool: dict[str, tuple[int, Tensor, Tensor]] = {}
    examples: dict[tuple[int, int], Used] = {}
    # Every client's recording is one stretch of training: which round it was, and who, is settled first.
    records = [one for folder in folders for one in read_recorded(folder)]
    for one in records:
        if one.node not in clients:
            raise BadFile(
                "truth of a capture",
                needs=f"batches of nodes that the server talked to: {', '.join(clients)}",
                got=f"node {one.node}",
                fix="give the folders of the clients of this run",
            )
        key = one.round, clients[one.node]
        # Where messages state no round, the turns of a client are counted off.
        if one.counted:
            key = _turn(transcript, one, clients[one.node]), clients[one.node]
        steps: list[tuple[int, ...]] = []
        if terms.sends == "document":
            examples[key] = Used(steps=people_behind(one, architecture, pool), behaviour="honest")
            continue
        # An example is stored once, however often it was trained on: steps hold its row.
        for batch in one.steps:
            inputs = _shaped(batch.inputs, architecture.input_shape)
            inputs = inputs if one.pixels else _without(normalize, inputs)
            labels = targets_of(batch.labels, len(inputs), architecture.task)
            pairs = zip(_examples(inputs, architecture), labels, strict=True)
            steps.append(tuple(_row(example, label, pool) for example, label in pairs))
        # What training led to, before any defence, shows later whether the declared terms are the real ones.
        if (result := _named(one.sent, network, apart)) is not None:
            write_tensors(sent_file(capture, *key), result)
        examples[key] = Used(steps=tuple(steps), behaviour="honest")
    if not examples:
        raise BadFile(
            f"truth of capture '{capture}'",
            needs="batches that a test client recorded",
            got=f"none in {', '.join(map(str, folders))}",
            fix="give the folders that test clients were given; where no network of torch trains, or its "
            "loss is none of torch's, the loop calls used(inputs, labels)",
        )
    _, inputs_of, labels_of = zip(*pool.values(), strict=True)
    truth = Truth(
        private=Batch(inputs=torch.stack(inputs_of), labels=torch.stack(labels_of)),
        shards={client: _shard(client, examples) for client in sorted({c for _, c in examples})},
        used=dict(sorted(examples.items())),
    )
    write_truth(truth, capture / "truth")
    # Now that there is a truth, terms that nobody declared can be fitted to it.
    for sentence in repair(capture, records, truth):
        _LOG.warning("%s", sentence)
    return truth


def _named(
    sent: Mapping[str, Tensor] | None, network: nn.Module, apart: tuple[str, ...]
) -> dict[str, Tensor] | None:
    """The result of a test client by the model's names; None: there is none, or it is broken.

    A broken result shows nothing about the terms. The capture has noted it, and others are checked.
    """
    if not sent or finite_fault(sent):
        return None
    try:
        return name_tensors(sent, network, apart=apart)
    except BadValue:
        return None


def sent_file(capture: Path, number: int, client: int) -> Path:
    """The file with the collected result of a client's training in a round."""
    return capture / "truth" / "sent" / f"{number:06d}-{client}.safetensors"


def _shard(client: int, examples: dict[tuple[int, int], Used]) -> tuple[int, ...]:
    """All rows that the client used in any round."""
    return tuple(sorted({row for (_, c), one in examples.items() if c == client for row in one.rows()}))


def _row(image: Tensor, label: Tensor, pool: dict[str, tuple[int, Tensor, Tensor]]) -> int:
    """The row of an image in the pool, to which a new image is appended."""
    return pool.setdefault(f"{digest(image)} {label.tolist()}", (len(pool), image, label))[0]


def _turn(transcript: Transcript, one: Recorded, client: int) -> int:
    """The round of a client's so many-th answer: queries do not state theirs.

    Raises:
        BadFile: the client answered less often.
    """
    answered = [
        record.round for record in transcript.rounds if any(u.client == client for u in record.updates)
    ]
    if one.round < len(answered):
        return answered[one.round]
    raise BadFile(
        "truth of a capture",
        needs=f"as many recorded queries of node {one.node} as answers: {len(answered)}",
        got=f"one more, number {one.round}",
        fix="give a truth_mod a new folder for every run",
    )


def _shaped(recorded: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What the training loop flattened, in the shape of examples; all else as it is."""
    flat = len(shape) > 1 and tuple(recorded.shape[1:]) == (math.prod(shape),)
    return recorded.reshape(len(recorded), *shape) if flat else recorded


def _without(normalize: object, inputs: Tensor) -> Tensor:
    """``inputs`` with the normalisation undone."""
    return inputs * normalize.std + normalize.mean if isinstance(normalize, Normalize) else inputs


def _examples(inputs: Tensor, architecture: Architecture) -> Tensor:
    """``inputs`` as examples of the network's modality.

    Raises:
        BadValue: they are none.
    """
    modality = architecture.inputs
    if len(inputs.shape[1:]) == len(modality.shape):
        inputs = modality.received(inputs)
    modality.check(
        inputs,
        subject=f"{modality.nouns} that test clients recorded, once the model's normalisation is undone",
        fix="say what the app normalises with: adapt(network, normalize=(mean, std))",
    )
    return inputs
