"""Building blocks of a scenario's tables: names, rounds, clients, :class:`Plugin`; and smaller tables."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from glasshouse.settings import Count, Natural, NotNegative, Positive, Recipe, Table

Name = Annotated[str, Field(min_length=1)]
Split = Literal["", "train", "val", "test"]
Message = Literal["broadcast", "update", "aggregate", "own"]

ROUNDS_NEEDS = '"all", "attacked", or a list of round numbers'
CLIENTS_NEEDS = "a number of clients >= 1, or a list of their ids"


DURATION_NEEDS = 'a time above 0, such as "90 s", "10 min" or "2 h"'
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """A duration in seconds; 0: the text is none.

    Examples:
        >>> seconds_of("90 s"), seconds_of("10 min"), seconds_of("1.5h"), seconds_of("soon")
        (90.0, 600.0, 5400.0, 0.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def _check_duration(value: str) -> str:
    if seconds_of(value) > 0:
        return value
    raise PydanticCustomError("needs", "{needs}", {"needs": DURATION_NEEDS})


Duration = Annotated[str, AfterValidator(_check_duration), WithJsonSchema({"description": DURATION_NEEDS})]


def _is_ids(value: object) -> bool:
    return isinstance(value, tuple) and all(type(v) is int for v in value)


def _check_rounds(value: object) -> object:
    if value in ("all", "attacked") or _is_ids(value):
        return value
    raise PydanticCustomError("needs", "{needs}", {"needs": ROUNDS_NEEDS})


def _check_clients(value: object) -> object:
    if (type(value) is int and value >= 1) or (_is_ids(value) and value):
        return value
    raise PydanticCustomError("needs", "{needs}", {"needs": CLIENTS_NEEDS})


Rounds = Annotated[
    Literal["all", "attacked"] | tuple[int, ...],
    BeforeValidator(_check_rounds),
    WithJsonSchema({"description": ROUNDS_NEEDS}),
]
Clients = Annotated[
    int | tuple[int, ...], BeforeValidator(_check_clients), WithJsonSchema({"description": CLIENTS_NEEDS})
]


def _check_arguments(value: dict[str, Any]) -> dict[str, Any]:
    strange = [f"{key} = {v}" for key, v in value.items() if not _is_plain(v)]
    if strange:
        needs = f"texts, numbers, true or false, lists and tables, not {', '.join(strange)}"
        raise PydanticCustomError("needs", "{needs}", {"needs": needs})
    return value


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v) for v in value)
    return isinstance(value, (str, int, float, bool))


# Keyword arguments of TOML types, except dates and times: JSON, from which the hash is computed, lacks them.
Arguments = Annotated[dict[str, Any], AfterValidator(_check_arguments)]


class Plugin(Table):
    """A registered name with its arguments: in TOML one flat table, or just the name.

    Attributes:
        name: as in ``glasshouse list``, or ``module:factory`` where that is allowed.
        label: name of this entry in the report; empty: ``name``.
        arguments: all other keys of the table, passed to the plug-in's factory by keyword.
    """

    name: Name
    label: str = ""
    arguments: Arguments = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, raw: Any) -> Any:
        if isinstance(raw, str):
            return {"name": raw}
        if not isinstance(raw, Mapping):
            return raw
        own = cls.model_fields.keys() - {"arguments"}
        rest = {key: value for key, value in raw.items() if key not in own}
        return {**{key: value for key, value in raw.items() if key in own}, "arguments": rest}

    @model_serializer(mode="plain")
    def _flatten(self) -> dict[str, Any]:
        own = {key: getattr(self, key) for key in type(self).model_fields if key != "arguments"}
        plain = {key: v.model_dump() if isinstance(v, BaseModel) else v for key, v in own.items()}
        if not self.label:
            del plain["label"]
        return {**plain, **self.arguments}


def canonical(value: Any) -> Any:
    """Convert tuples to lists recursively, as in TOML and JSON."""
    if isinstance(value, Mapping):
        return {k: canonical(v) for k, v in value.items()}
    return [canonical(v) for v in value] if isinstance(value, (list, tuple)) else value


@final
class Adversarial(Table):
    """``[model.pretraining.adversarial]``: adversarial training (``models.adversarial``).

    Attributes:
        method: ``none``: unperturbed images; ``fgsm``: one step from a random start; ``pgd``: several.
        radius: largest change of a pixel, in 255ths of the image range.
        step: size of each step, as a share of the radius; None: 1.25 for fgsm, 0.5 for pgd.
        steps: number of steps of pgd.
    """

    method: Literal["none", "fgsm", "pgd"] = "none"
    radius: Positive = 4.0
    step: Positive | None = None
    steps: Count = 10


@final
class Pretraining(Recipe):
    """``[model.pretraining]``: training on the public part before round 0, configured as :class:`Recipe`.

    Attributes:
        epochs: passes over the public part; 0: none.
        adversarial: see :class:`Adversarial`.
        behind: under protocol transfer, what the features are pre-trained with: the agreed ``head``, or one
            ``linear`` layer that is discarded.
        head_epochs: under transfer, passes that then fit the agreed head (``linear``, or ``weights`` given).
    """

    epochs: Natural = 0
    adversarial: Adversarial = Adversarial()
    behind: Literal["head", "linear"] = "head"
    head_epochs: Natural = 0


@final
class Model(Plugin):
    """``[model]``: the agreed architecture; further keys are arguments of its factory.

    Attributes:
        weights: safetensors file to start from (transfer: with or without a head); None: random by the seed.
        pretraining: training by the server before round 0.
    """

    name: Name = "convnet"
    weights: str | None = None
    pretraining: Pretraining = Pretraining()


@final
class Epsilon(Table):
    """``[audit.epsilon]``: test a claimed ε with canaries, which give a lower bound.

    The canaries are in an additional simulated federation. In a recorded federation (``captured``) they are
    the clients named in its ``canaries.json``, and ``canaries`` is ignored.

    Attributes:
        claimed: the claimed ε; 0: none is claimed, and no canaries are used.
        delta: the δ of the claim.
        unit: what a canary is; empty: the unit that the defences protect.
        canaries: number of canaries, each included by an independent fair coin flip.
    """

    claimed: NotNegative = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    unit: Literal["", "example", "client"] = ""
    canaries: Annotated[int, Field(ge=20)] = 1000


@final
class Guard(Table):
    """``[guard]``: what clients check before they train, and before they send.

    Attributes:
        models: how to treat a received model that ``glasshouse guard`` finds suspicious.
        updates: how to treat an update that contains examples.
    """

    models: Literal["trusted", "watched", "refused"] = "trusted"
    updates: Literal["sent", "mitigated"] = "sent"
