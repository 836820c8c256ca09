"""Settings as written in a scenario, without torch: optimizer and training tables, and model arguments."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, dataclass_transform, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from glasshouse.errors import BadValue
from glasshouse.registry import arguments

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # it has no public name

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]

NORMALISATION: Final = ("mean", "std")
"""Arguments that normalise the images of a plain network, one number for all channels."""

_WARM_UP: Final = 0.3
_FIRST: Final = 1 / 25
_LAST: Final = 1e-4 / 25
_SMALLEST: Final = 1e-12


class Table(BaseModel):
    """One table of settings: frozen, no unknown keys, no type conversion, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class _Telling(ModelMetaclass):
    """Calls from Python answer a wrong setting in this package's form; readers of files have their own."""

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        if args:
            names = list(cls.model_fields)  # type: ignore[attr-defined]  # of a table, which is a model
            raise BadValue(
                cls.__name__,
                needs="settings by name",
                got=", ".join(map(repr, args)),
                fix=f"{cls.__name__}({names[0]}={args[0]!r})",
            )
        try:
            return super().__call__(**settings)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            given = "" if isinstance(first["input"], dict) else repr(first["input"])
            raise BadValue(
                f"{cls.__name__}{f', {place}' if place else ''}",
                needs=f"one of {', '.join(cls.model_fields)}"  # type: ignore[attr-defined]  # likewise
                if first["type"] == "extra_forbidden"
                else first["msg"].removeprefix("Input should be "),
                got=given or ", ".join(f"{key} = {value!r}" for key, value in settings.items()),
                fix="take one that exists; another optimizer or loss than terms can state has its name by "
                "gh.explain(..., examples=...)",
            ) from error


@final
class Optimizer(Table, metaclass=_Telling):
    """The clients' optimizer in local training, as in ``torch.optim``; its state is reset in every round.

    Attributes:
        name: ``sgd``, ``adam`` (decay is added to the gradient), or ``adamw`` (decoupled decay).
        momentum: of ``sgd``.
        weight_decay: of all three.
        betas: of ``adam`` and ``adamw``: decay rates of the running means of the gradient and of its square.
        eps: of ``adam`` and ``adamw``: added to the square root of the latter.
        nesterov: Nesterov's momentum, of ``sgd``.
        schedule: ``constant``; ``cosine``: half a cosine down over ``period``, then a restart (Loshchilov &
            Hutter 2017); ``step``: times ``gamma`` after each ``period``; ``warmup``: linearly up over
            ``period``, then constant; ``onecycle``: up from 1/25 over the first 30 % of ``period``, then down
            to 1/250,000, along cosines, as torch's with ``period`` steps in all (Smith & Topin 2018). Never
            below 1e-12 of the maximum.
        over: what ``period`` counts: rounds of the federation, or local steps, from 0 in every round.
        period: None: the schedule is constant.
        gamma: of ``step``.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    nesterov: bool = False
    schedule: Literal["constant", "cosine", "step", "warmup", "onecycle"] = "constant"
    over: Literal["rounds", "steps"] = "rounds"
    period: Count | None = None
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.schedule == "constant") != (self.period is None):
            needs = "a period with every schedule but constant, and none with constant"
        elif self.momentum and self.name != "sgd":
            needs = "momentum = 0 with adam and adamw: their betas[0] is theirs"
        elif self.nesterov and not self.momentum:
            needs = "momentum > 0 with nesterov"
        else:
            return self
        raise PydanticCustomError("needs", "{needs}", {"needs": needs})

    @property
    def traits(self) -> frozenset[str]:
        """Its name and its differences from plain SGD; see ``attacks.base.Needs.optimizers``.

        Examples:
            >>> sorted(Optimizer(weight_decay=0.1, schedule="cosine", period=5).traits)
            ['schedule', 'sgd', 'weight_decay']
        """
        differences = ("momentum", "nesterov", "weight_decay", "schedule")
        return frozenset({self.name, *(n for n in differences if getattr(self, n) != getattr(PLAIN, n))})

    def share(self, *, round: int, step: int = 0) -> float:
        """The learning rate in a local step of a round, as a fraction of the highest, in (0, 1].

        Examples:
            >>> [Optimizer(schedule="step", period=2, gamma=0.5).share(round=r) for r in range(4)]
            [1.0, 1.0, 0.5, 0.5]
        """
        if self.period is None:
            return 1.0
        done = round if self.over == "rounds" else step
        if self.schedule == "warmup":
            return min(1.0, (done + 1) / self.period)
        if self.schedule == "onecycle":
            return _cycle_of_torch(done, self.period)
        if self.schedule == "step":
            return float(max(self.gamma ** (done // self.period), _SMALLEST))
        return max(_cosine(1, 0, done % self.period / self.period), _SMALLEST)

    def weight(self, *, round: int, steps: int) -> float:
        """Total displacement of ``steps`` SGD steps along a constant gradient, in steps at the full rate.

        Examples:
            >>> Optimizer().weight(round=0, steps=3), Optimizer(momentum=0.5).weight(round=0, steps=2)
            (3.0, 2.5)
        """
        if not self.momentum and self.period is None:
            return float(steps)
        total = speed = 0.0
        for step in range(steps):
            speed = self.momentum * speed + 1.0
            move = 1.0 + self.momentum * speed if self.nesterov else speed
            total += move * self.share(round=round, step=step)
        return total


PLAIN: Final = Optimizer()
"""Plain SGD."""


@final
class Training(Table, metaclass=_Telling):
    """``[federation.training]``: what else a client does in a local step; its loss is part of the task.

    Attributes:
        mode: ``evaluation``: batch norm uses the statistics received, dropout is off; ``training``: as after
            ``module.train()``: statistics of the batch, dropout, and running statistics that are sent; None:
            ``training`` where a scenario's clients send parameters or their change, else ``evaluation``.
        frozen: patterns of names of layers that stay in evaluation in mode ``training``.
        precision: of the forward and backward pass; ``float16`` with a scaled loss.
        reduction: ``mean`` or ``sum`` of the losses of a step's examples.
        drop_last: steps of fewer than ``batch_size`` examples are left out, as with a loader's ``drop_last``.
        clip_norm: L2 norm to which the gradient of a step is clipped, all tensors together; None: unclipped.
        accumulate: batches whose mean gradient makes one step.
        leftover: what becomes of fewer batches than ``accumulate`` at the end of a pass: their ``mean`` makes
            a step; their sum divided by ``accumulate`` does (``share``), as where each batch's loss is; or
            they are ``dropped``.
        proximal: FedProx's factor of half the squared distance from the received parameters (Li et al. 2020).
        local_steps: steps that a client takes in a round, whatever its number of examples; None: as many as
            ``local_epochs`` passes take.
        epochs_by_client: passes of each client, in turn by its id; empty: ``local_epochs``.
        batch_sizes_by_client: likewise examples per step; empty: ``batch_size``.
        personal: patterns (``bn*``, ``head``) of names of layers or tensors that each client trains and
            keeps: after the agreed start they are never sent in either direction (FedBN: Li et al. 2021).
        fixed: likewise of what nobody trains or sends, such as a public backbone.
    """

    mode: Literal["evaluation", "training"] | None = None
    frozen: tuple[str, ...] = ()
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    reduction: Literal["mean", "sum"] = "mean"
    drop_last: bool = False
    clip_norm: Positive | None = None
    accumulate: Count = 1
    leftover: Literal["mean", "share", "dropped"] = "mean"
    proximal: NotNegative = 0.0
    local_steps: Count | None = None
    epochs_by_client: tuple[Count, ...] = ()
    batch_sizes_by_client: tuple[Count, ...] = ()
    personal: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.leftover != "mean" and self.accumulate == 1:
            needs = "accumulate above 1 with a leftover: else no batch is left over"
            raise PydanticCustomError("needs", "{needs}", {"needs": needs})
        return self

    def used(self, examples: int, batch_size: int) -> int:
        """How many of a pass's examples are trained on; the last ones in its order are left out.

        Examples:
            >>> [Training(accumulate=2, leftover=how).used(5, 1) for how in ("share", "dropped")]
            [5, 4]
        """
        batches = examples // batch_size if self.drop_last else -(-examples // batch_size)
        if self.leftover == "dropped":
            batches -= batches % self.accumulate
        return min(examples, batches * batch_size)

    def divisor(self, batches: int) -> int:
        """By what the sum of the gradients of a step's batches is divided."""
        return self.accumulate if self.leftover == "share" else batches

    def in_mode_of(self, sends: str) -> "Training":
        """With the mode in which clients that send such updates train, unless one is stated.

        Whoever sends a model has trained it in training mode: running statistics are learnt and travel.

        Examples:
            >>> Training().in_mode_of("delta").mode, Training().in_mode_of("gradient").mode
            ('training', 'evaluation')
        """
        if self.mode is not None:
            return self
        usual = "training" if sends in ("delta", "parameters") else "evaluation"
        return self.model_copy(update={"mode": usual})

    @property
    def traits(self) -> frozenset[str]:
        """Its differences from a plain step that change the steps; see ``attacks.base.Needs.optimizers``.

        Examples:
            >>> sorted(Training(proximal=0.1, mode="training").traits)
            ['proximal']
        """
        differences = {"clip_norm": None, "accumulate": 1, "proximal": 0.0, "personal": ()}
        return frozenset(name for name, plain in differences.items() if getattr(self, name) != plain)


def covers(patterns: tuple[str, ...], name: str) -> bool:
    """Whether one of the patterns matches the name of a tensor or of a layer that it belongs to.

    Examples:
        >>> covers(("bn*", "head"), "bn1.weight"), covers(("head",), "head.out.bias")
        (True, True)
        >>> covers(("bn",), "bn1.bias")
        False
    """
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


ORDINARY: Final = Training()
"""An ordinary local step."""


class Recipe(Table):
    """How to train; with the data, the model and the random stream it determines the result.

    Attributes:
        epochs: passes over the data.
        batch_size: examples per step; a last, smaller batch is used too.
        learning_rate: the highest value in the schedule.
        schedule: ``constant``; ``cosine`` down to 0; ``onecycle``: up over the first 30 % of the
            steps from 1/25, then down to 1/250,000, both along a cosine (Smith & Topin 2018);
            ``quarters``: a tenth after each quarter of the steps.
        optimizer: ``sgd`` with Nesterov's momentum where ``momentum`` > 0, ``adam``, or ``adamw``.
        momentum: of sgd.
        weight_decay: of all three.
        flip: mirror each image with probability 1/2.
        shift: translate each image by up to this many pixels, padded with zeros.
        cutout: side of a mid-grey square at a random position in each image (DeVries & Taylor 2017).
        precision: ``bfloat16``: layers compute in it; weights and losses stay float32.
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
        """Learning rate after the fraction ``done`` of all steps, in [0, 1].

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
        return self.learning_rate * _one_cycle(done)


def _one_cycle(done: float) -> float:
    """The share of the highest rate after a share of the steps."""
    if done < _WARM_UP:
        return _cosine(_FIRST, 1, done / _WARM_UP)
    return _cosine(1, _LAST, (done - _WARM_UP) / (1 - _WARM_UP))


def _cycle_of_torch(done: int, period: int) -> float:
    """The share of the highest rate after some steps, as torch's ``OneCycleLR`` with so many in all."""
    peak, last = _WARM_UP * period - 1, period - 1
    if done <= peak:
        return _cosine(_FIRST, 1, done / peak)
    return _cosine(1, _LAST, min(1.0, (done - peak) / (last - peak)))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


@final
@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """How a model's factory is called.

    Attributes:
        takes: its settings by name.
        inputs: its argument for the modality; None: it takes none.
        way: ``described``: with the modality and the task, ``inputs`` and ``task``; ``shaped``: with the
            input shape and the classes; ``plain``: with its own settings alone, as a plain network's class.
    """

    takes: Mapping[str, inspect.Parameter]
    inputs: inspect.Parameter | None
    way: Literal["described", "shaped", "plain"]

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The arguments that a scenario may give.

        A plain network also has ``mean`` and ``std``, with which its pixels are normalised outside of it.
        """
        if self.way == "described":
            return dict(self.takes)
        if self.way == "shaped":
            return dict(list(self.takes.items())[2:])
        kind = inspect.Parameter.KEYWORD_ONLY
        outside = {n: inspect.Parameter(n, kind, default=None, annotation=float) for n in NORMALISATION}
        return {**outside, **self.takes}


def model_call(factory: Callable[..., Any]) -> ModelCall:
    """How a model's factory is called, by its signature.

    Examples:
        >>> model_call(lambda input_shape, classes, width=8: None).way, model_call(lambda width=8: None).way
        ('shaped', 'plain')
        >>> model_call(lambda inputs, task, width=8: None).way
        'described'
    """
    takes, asked = arguments(factory), inspect.signature(factory).parameters
    inputs = asked.get("inputs")
    if {"inputs", "task"} <= asked.keys():
        return ModelCall(takes=takes, inputs=inputs, way="described")
    first = list(takes.values())[:2]
    by_name = [p.name for p in first] == ["input_shape", "classes"]
    shaped = len(first) == 2 and (by_name or all(p.default is p.empty for p in first))
    if shaped or any(p.kind is p.VAR_POSITIONAL for p in asked.values()):
        return ModelCall(takes=takes, inputs=inputs, way="shaped")
    return ModelCall(takes=takes, inputs=inputs, way="plain")
