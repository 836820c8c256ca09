"""What tables of a scenario are made of: names, rounds, clients, :class:`Plugin`; the tables of models."""

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


# Keyword arguments as TOML stores them, without dates and times: JSON, and hence the hash, has none.
Arguments = Annotated[dict[str, Any], AfterValidator(_check_arguments)]


class Plugin(Table):
    """A registered name with its arguments: in TOML one flat table, or just the name.

    Attributes:
        name: as in ``glasshouse list``, or ``module:factory`` where that is allowed.
        label: how the report calls this entry; empty: the name.
        arguments: every other key of the table, handed to the plug-in's factory by keyword.
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
    """Converts tuples to lists recursively, as TOML and JSON have them."""
    if isinstance(value, Mapping):
        return {k: canonical(v) for k, v in value.items()}
    return [canonical(v) for v in value] if isinstance(value, (list, tuple)) else value


def freeze(value: Any) -> Any:
    """Converts lists to tuples recursively, as the spec stores them."""
    if isinstance(value, Mapping):
        return {k: freeze(v) for k, v in value.items()}
    return tuple(freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


@final
class Adversarial(Table):
    """``[model.pretraining.adversarial]``: train on images moved against the model (``models.adversarial``).

    Attributes:
        method: ``none`` trains on the images as they are; ``fgsm``: one step from a random start; ``pgd``:
            several.
        radius: largest change of a pixel, in 255ths of the image range.
        step: of each step, as a share of the radius; None: 1.25 for fgsm, 0.5 for pgd.
        steps: of pgd.
    """

    method: Literal["none", "fgsm", "pgd"] = "none"
    radius: Positive = 4.0
    step: Positive | None = None
    steps: Count = 10


@final
class Pretraining(Recipe):
    """``[model.pretraining]``: training on the public part before round 0, as :class:`Recipe` says it.

    Attributes:
        epochs: passes over the public part; 0: none.
        adversarial: see :class:`Adversarial`.
        behind: under protocol transfer, what follows the features in their training: the agreed ``head``,
            or one ``linear`` layer that is thrown away.
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
        weights: safetensors file to start from (transfer: with or without a head); None: fresh, by the seed.
        pretraining: what the server does before round 0.
    """

    name: Name = "convnet"
    weights: str | None = None
    pretraining: Pretraining = Pretraining()


@final
class Epsilon(Table):
    """``[audit.epsilon]``: is a claimed ε real? Canaries show a lower bound.

    They are in a further federation, simulated for them. Of a federation that ran (``captured``) they
    are the clients that its ``canaries.json`` names; ``canaries`` means nothing there.

    Attributes:
        claimed: the ε that is claimed; 0: nothing is, and no canaries are used.
        delta: δ at which it is claimed.
        unit: what a canary is; empty: what the defences protect.
        canaries: how many, each in by its own fair coin.
    """

    claimed: NotNegative = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    unit: Literal["", "example", "client"] = ""
    canaries: Annotated[int, Field(ge=20)] = 1000


@final
class Guard(Table):
    """``[guard]``: what clients check before they train, and before they send.

    Attributes:
        models: what becomes of a received model that ``glasshouse guard`` finds odd.
        updates: what becomes of an update in which examples stand.
    """

    models: Literal["trusted", "watched", "refused"] = "trusted"
    updates: Literal["sent", "mitigated"] = "sent"
