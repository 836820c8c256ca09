"""Examination of a received model before training: its weights, and its behaviour on own examples."""

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.fit import Fit
from glasshouse.guard.inspect import inspect
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.found import Given
from glasshouse.guard.pursuit.honest import Range, Ranges, learn, learn_rounds
from glasshouse.guard.pursuit.inspect import HonestRanges, Judged, inspect_in_modes
from glasshouse.guard.pursuit.limits import JUDGED, REMEMBERED, SEARCHED
from glasshouse.guard.pursuit.states import EVALUATION, TRAINING, in_mode
from glasshouse.store import read_json, write_json

BATCH: Final = SEARCHED + JUDGED
"""Number of the client's own examples on which a received model is tried."""

_RULES: Final = 3
"""Raised whenever ranges are measured otherwise: what former rules measured is measured anew."""

Examples = tuple[Tensor, Tensor]
"""Examples as they enter the network, (B, ...), and their classes, (B,)."""


@final
@dataclass(kw_only=True)
class Examiner:
    """Examines models for the nodes of one process.

    Attributes:
        folder: of the clients' reports; ranges of honest models are cached there.
        kept: a node's examples from an earlier round. They are never written to a file.
        remembered: how many accepted models of a node are kept.
        last: these, the newest first.
        accepted: fit of the last accepted model to a node's examples.
    """

    folder: Path
    remembered: int = REMEMBERED
    kept: dict[int, Examples] = field(default_factory=dict)
    accepted: dict[int, Fit] = field(default_factory=dict)
    last: dict[int, deque[nn.Module]] = field(default_factory=dict)
    _honest: dict[str, Mapping[str, Any]] = field(default_factory=dict)

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
    ) -> Judged:
        """What fixed read-outs get of ``examples`` in the received ``model``, beside honest models.

        Honest models are made for this from the architecture, once per network, mode and kind of data; the
        random state of the client's training is not affected. The accepted models of the node's last
        rounds are judged together with this one, as its examples repeat.

        Args:
            node: id of the node.
            model: as received.
            examples: the node's own.
            is_mode_known: the client trains the model in its current mode; else every mode is tried.
        """
        own = Own(inputs=examples[0], targets=examples[1])
        last = self.last.setdefault(node, deque(maxlen=self.remembered))
        modes = (TRAINING if model.training else EVALUATION,) if is_mode_known else ()
        try:
            with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False), torch.enable_grad():
                honest = HonestRanges(
                    measure=partial(self._range, model, own), measure_rounds=partial(self._rounds, model, own)
                )
                judged = inspect_in_modes(model, own, honest=honest, earlier=tuple(last), modes=modes)
        except BadValue as error:
            return Judged(findings=(str(error),))
        if judged.verdict == "passed":
            last.appendleft(copy.deepcopy(model))
        return judged

    def fit_of(self, node: int, model: nn.Module, examples: Examples) -> str:
        """Fit of ``model`` to the first ``BATCH`` examples, compared with the last accepted model."""
        now = Fit.of(model, examples[0][:BATCH], examples[1][:BATCH])
        last, self.accepted[node] = self.accepted.get(node), now
        return now.sentence(last)

    def _range(self, model: nn.Module, own: Own, mode: str, steps: tuple[int, ...]) -> Ranges:
        """The range of honest models, from the cache where it is known."""
        stored = self._cached(
            _file_of(model, own, mode, steps),
            lambda: asdict(learn(in_mode(model, mode, own.inputs), own, steps=steps)),
        )
        return _ranges_of(stored)

    def _rounds(self, model: nn.Module, own: Own, mode: str, models: int) -> Range:
        """The range of pairs of honest models, from the cache where it is known."""
        stored = self._cached(
            _file_of(model, own, mode, f"two rounds of {models}"),
            lambda: asdict(learn_rounds(in_mode(model, mode, own.inputs), own, models=models)),
        )
        return _range_of(stored)

    def _cached(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        if name not in self._honest and (self.folder / name).exists():
            self._honest[name] = read_json(self.folder / name)
        if name not in self._honest:
            self._honest[name] = measure()
            write_json(self.folder / name, self._honest[name])
        return self._honest[name]


def _file_of(model: nn.Module, own: Own, mode: str, what: object) -> str:
    """Name of the file with a range: what it depends on, hashed."""
    layout = [(name, tuple(t.shape)) for name, t in model.state_dict().items()]
    modes = [part.training for part in model.modules()]  # batch norm may be frozen
    measured = [field.name for field in fields(Given)]  # cached ranges of old versions lack some
    parts = [type(part).__name__ for part in model.modules()]
    seen = [_RULES, min(BATCH, len(own)), own.kind, layout, parts, mode, modes, what, measured]
    return f"{hashlib.sha256(repr(seen).encode()).hexdigest()[:12]}.honest.json"


def _ranges_of(stored: Mapping[str, Any]) -> Ranges:
    return Ranges(
        tensors={name: _range_of(one) for name, one in stored["tensors"].items()},
        used=stored["used"],
        kept=tuple(stored["kept"]),
        buffers=tuple(stored["buffers"]),
    )


def _range_of(stored: Mapping[str, Any]) -> Range:
    return Range(**{part: Given(**values) for part, values in stored.items()})
