"""The settings of Flower's ``LocalDpMod``, read off an app's ``pyproject.toml``."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

from glasshouse.audit.defenses.declared import Judged, Ruling
from glasshouse.audit.defenses.observe import unclear
from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import check_size
from glasshouse.registry import Card, create, load
from glasshouse.transcript.record import Transcript
from glasshouse.wire import Mechanism

NAMES: Final = ("clipping-norm", "sensitivity", "epsilon", "delta")
_FIX: Final = "give the app's pyproject.toml, with clipping-norm, sensitivity, epsilon and delta"


def noise_of(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """Standard deviation of the noise that ``LocalDpMod`` adds.

    Source:
        flwr 1.41, ``flwr.clientapp.mod.LocalDpMod``: √(2 ln(1.25/δ)) · sensitivity ÷ ε.

    Examples:
        >>> round(noise_of(epsilon=1.0, delta=1e-5, sensitivity=1.0), 3)
        4.845
    """
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


@final
@dataclass(frozen=True, kw_only=True)
class FlowerConfig:
    """Reads ``clipping-norm``, ``sensitivity``, ``epsilon`` and ``delta`` of a Flower app."""

    card: ClassVar[Card] = Card(summary="Flower's LocalDpMod, of an app's pyproject.toml")

    def read(self, paths: Sequence[Path], transcript: Transcript) -> tuple[list[Mechanism], list[Judged]]:
        """Mechanisms to look for in the updates, and rulings that the files alone decide.

        Raises:
            BadFile: a file has not all four settings.
        """
        del transcript  # its ruling needs no update
        mechanisms, rows = [], []
        for path in paths:
            clip, sensitivity, epsilon, delta = _settings(path)
            std = noise_of(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
            mechanisms.append(create(load("defenses", "clip"), {"norm": clip}).describe())
            mechanisms.append(create(load("defenses", "gaussian_noise"), {"std": std}).describe())
            rows.append(_rule(clip, sensitivity, epsilon))
        return mechanisms, rows


def _rule(clip: float, sensitivity: float, epsilon: float) -> Judged:
    """Two updates clipped to ``clip`` differ by up to twice that; from zeros, by that."""
    ratio = clip / sensitivity
    ruling: Ruling = "mis-set" if ratio > 1 else "cannot be told"
    reason = (
        f"the noise is {ratio:.4g} times less than epsilon = {epsilon:g} needs for updates clipped to "
        f"{clip:g} (against zeros; {2 * ratio:.4g} times against any other update)"
        if ratio > 1
        else "the noise is what epsilon needs for an update clipped so, against zeros"
    )
    return Judged(
        defense="LocalDpMod", setting="sensitivity", declared=sensitivity, client=None,
        observation=unclear("none", 0, reason), ruling=ruling, reason=reason,
    )  # fmt: skip


def _settings(path: Path) -> tuple[float, float, float, float]:
    subject = f"configuration '{path}'"
    try:
        data = path.read_bytes()
        check_size(len(data), limits.TOML_BYTES, subject=subject)
        table = tomllib.loads(data.decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFile(subject, needs="a TOML file", got=str(error), fix=_FIX) from error
    found = dict(_numbers(table))
    missing = [name for name in NAMES if not found.get(name, 0) > 0]
    if missing:
        raise BadFile(subject, needs=", ".join(NAMES), got=f"no {', '.join(missing)} above 0", fix=_FIX)
    clip, sensitivity, epsilon, delta = (found[name] for name in NAMES)
    return clip, sensitivity, epsilon, delta


def _numbers(table: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers anywhere in the file, by their last name; ``dp.clipping_norm`` is ``clipping-norm``."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name.rpartition(".")[2].replace("_", "-"), float(value)
