"""Settings as a scenario writes them, without torch: the base of tables, and how to train a classifier."""

import math
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]

_WARM_UP: Final = 0.3
_FIRST: Final = 1 / 25
_LAST: Final = 1e-4 / 25


def move_into(table: str, *keys: str) -> dict[str, str]:
    """For ``Card.renamed``: arguments that became keys of ``table`` under their old names.

    Examples:
        >>> move_into("training", "epochs")
        {'epochs': 'training.epochs'}
    """
    return {key: f"{table}.{key}" for key in keys}


class Table(BaseModel):
    """One table: frozen, no unknown keys, no conversion of types, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Recipe(Table):
    """How to train; together with data, model and stream it decides the result.

    Attributes:
        epochs: passes over the data.
        batch_size: examples per step; a last, smaller batch is used too.
        learning_rate: the highest of the schedule.
        schedule: ``constant``; ``cosine`` down to 0; ``onecycle``: up over the first 30 % of the
            steps from 1/25, then down to 1/250,000, both along a cosine (Smith & Topin 2018);
            ``quarters``: a tenth after each quarter of the steps.
        optimizer: ``sgd`` with Nesterov's momentum where ``momentum`` > 0, ``adam``, or ``adamw``.
        momentum: of sgd.
        weight_decay: of all three.
        flip: mirror each image with probability 1/2.
        shift: move each by up to so many pixels, zeros enter.
        cutout: side of a square of mid-grey that covers a random place of each image (DeVries & Taylor 2017).
        precision: ``bfloat16`` computes layers in it; weights and losses stay float32.
        channels_last: memory layout of images and convolutions; often faster, same result up to rounding.
    """

    epochs: Natural
    batch_size: Count = 64
    learning_rate: Positive = 0.05
    schedule: Literal["constant", "cosine", "onecycle", "quarters"] = "onecycle"
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Share = 0.9
    weight_decay: NotNegative = 5e-4
    flip: bool = False
    shift: Natural = 0
    cutout: Natural = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    channels_last: bool = False

    def rate(self, done: float) -> float:
        """Learning rate when the share ``done`` of all steps, in [0, 1], is behind us.

        Examples:
            >>> Recipe(epochs=1, learning_rate=1.0, schedule="cosine").rate(0.5)
            0.5
        """
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "quarters":
            return float(self.learning_rate * 0.1 ** int(4 * done))
        if self.schedule == "cosine":
            return self.learning_rate * _cosine(1, 0, done)
        if done < _WARM_UP:
            return self.learning_rate * _cosine(_FIRST, 1, done / _WARM_UP)
        return self.learning_rate * _cosine(1, _LAST, (done - _WARM_UP) / (1 - _WARM_UP))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
