"""Examination of a received model before training: its weights, and its behaviour on own examples."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.behaviour.fit import Fit
from glasshouse.guard.behaviour.inspect import (
    LONGER,
    STEPS,
    HonestLayer,
    HonestRange,
    inspect_behaviour,
    learn_honest_range,
)
from glasshouse.guard.behaviour.modes import in_mode, modes_of
from glasshouse.guard.behaviour.observe import LayerBehaviour
from glasshouse.guard.inspect import inspect
from glasshouse.store import read_json, write_json

BATCH: Final = 64
"""Number of the client's own examples on which a received model is tried."""

Examples = tuple[Tensor, Tensor]
"""Examples as they enter the network, (B, ...), and their classes, (B,)."""


@final
@dataclass(kw_only=True)
class Examiner:
    """Examines models for the nodes of one process.

    Attributes:
        folder: of the clients' reports; ranges of honest models are cached there.
        kept: a node's examples from an earlier round. They are never written to a file.
        accepted: fit of the last accepted model to a node's examples.
    """

    folder: Path
    kept: dict[int, Examples] = field(default_factory=dict)
    accepted: dict[int, Fit] = field(default_factory=dict)
    _honest: dict[str, HonestRange] = field(default_factory=dict)

    def examine_weights(
        self, tensors: Mapping[str, Tensor], *, agreed: Mapping[str, Tensor] | None = None
    ) -> list[str]:
        """Findings against a model, from its tensors only."""
        try:
            return list(inspect(tensors, agreed=agreed).inspection.findings)
        except BadValue as error:
            return [str(error)]

    def examine_behaviour(
        self, node: int, model: nn.Module, examples: Examples, *, is_mode_known: bool = True
    ) -> list[str]:
        """Findings against the received ``model``, from its behaviour on the first ``BATCH`` examples.

        Other examples are tried if a layer's update would show few of these, or none.

        Honest models are trained for this on all ``examples``, once per node, network, mode and number of
        examples; the random state of the client's training is not affected.

        Args:
            node: id of the node.
            model: as received.
            examples: the node's own.
            is_mode_known: the client trains the model in its current mode; else every mode is tried.
        """
        batch = examples[0][:BATCH], examples[1][:BATCH]
        others = examples[0][BATCH:], examples[1][BATCH:]
        try:
            with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False), torch.enable_grad():
                for one in [model] if is_mode_known else (in_mode(model, mode) for mode in modes_of(model)):
                    honest, longer = (
                        partial(self._range, node, one, examples, steps) for steps in (STEPS, LONGER)
                    )
                    outcome = inspect_behaviour(one, *batch, honest=honest(), longer=longer, others=others)
                    if outcome.findings:
                        return list(outcome.findings)
        except BadValue as error:
            return [str(error)]
        return []

    def fit_of(self, node: int, model: nn.Module, examples: Examples) -> str:
        """Fit of ``model`` to the first ``BATCH`` examples, compared with the last accepted model."""
        now = Fit.of(model, examples[0][:BATCH], examples[1][:BATCH])
        last, self.accepted[node] = self.accepted.get(node), now
        return now.sentence(last)

    def _range(self, node: int, model: nn.Module, examples: Examples, steps: tuple[int, ...]) -> HonestRange:
        size = min(BATCH, len(examples[1]))
        layout = [(name, tuple(t.shape)) for name, t in model.state_dict().items()]
        modes = [part.training for part in model.modules()]  # batch norm may be frozen
        measured = [field.name for field in fields(LayerBehaviour)]  # cached ranges of old versions lack some
        digest = hashlib.sha256(repr([size, layout, modes, steps, measured]).encode()).hexdigest()[:8]
        name = f"{node}.{digest}.honest.json"
        if name not in self._honest and (self.folder / name).exists():
            self._honest[name] = {
                layer: HonestLayer(**{**stored, "most": LayerBehaviour(**stored["most"])})
                for layer, stored in read_json(self.folder / name).items()
            }
        if name not in self._honest:
            learnt = learn_honest_range(model, *examples, batch=size, steps=steps)
            write_json(self.folder / name, {layer: asdict(one) for layer, one in learnt.items()})
            self._honest[name] = learnt
        return self._honest[name]
