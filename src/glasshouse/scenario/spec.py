"""A scenario as frozen data: one federation, what is done to it, and how that is measured.

Each class is one table of the TOML file (docs/scenario.md lists every key). Nothing here reads files or
builds anything: :mod:`glasshouse.scenario.load` does the first, ``audit.build`` the second. Literals that
also live in other packages of this layer are repeated, and a test holds them equal.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from glasshouse.wire import Kind

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Split = Literal["", "train", "val", "test"]
Message = Literal["broadcast", "update", "aggregate", "own"]

ROUNDS_NEEDS = '"all", "attacked", or a list of round numbers'
CLIENTS_NEEDS = "a number of clients >= 1, or a list of their ids"


class _Table(BaseModel):
    """One table: frozen, no unknown keys, no conversion of types, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


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


class Plugin(_Table):
    """A registered name with its arguments: in TOML one flat table, or just the name.

    Attributes:
        name: as in ``glasshouse list``, or ``module:factory`` where that is allowed.
        label: how the report calls this entry; empty: the name.
        arguments: every other key of the table, handed to the plug-in's factory by keyword.
    """

    name: Name
    label: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)

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


@final
class Data(_Table):
    """``[data]``: where images come from, and how they are dealt to roles.

    Attributes:
        source: ``digits``, or a registered kind with a path or name: ``npz:PATH``, ``hf:NAME``, ...
        resize: side in pixels; None keeps the size.
        private_split, auxiliary_split, public_split, heldout_split: split that the part comes from; empty:
            dealt by the seed from all that the others leave.
        deal: what is dealt to parts: single images, or whole labels (people, classes).
        examples: private examples per client. auxiliary, public, heldout: images in that part.
        partition: how private images are spread over clients. alpha: concentration of ``dirichlet``.
        transforms: applied to every image in order, by name (domain shifts).
        images_are_public: the report need not blur originals.
    """

    source: Name = "digits"
    resize: Count | None = None
    private_split: Split = ""
    auxiliary_split: Split = ""
    public_split: Split = ""
    heldout_split: Split = ""
    deal: Literal["image", "label"] = "image"
    examples: Count = 1
    auxiliary: Natural = 0
    public: Natural = 0
    heldout: Natural = 0
    partition: Literal["iid", "dirichlet", "pathological"] = "iid"
    alpha: Positive | None = None
    transforms: tuple[Plugin, ...] = ()
    images_are_public: bool = False


@final
class Pretraining(_Table):
    """``[model.pretraining]``: training on the public part before round 0; 0 epochs: none.

    Attributes:
        epochs: passes over the public part. batch_size, learning_rate, momentum, weight_decay: of SGD.
    """

    epochs: Natural = 0
    batch_size: Count = 64
    learning_rate: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NotNegative = 5e-4


@final
class Model(Plugin):
    """``[model]``: the agreed architecture; further keys are arguments of its factory.

    Attributes:
        weights: safetensors file to start from; None: freshly initialised by the seed.
        pretraining: what the server does before round 0.
    """

    name: Name = "convnet"
    weights: str | None = None
    pretraining: Pretraining = Pretraining()


@final
class Behaviour(Plugin):
    """``[[federation.behaviours]]``: how some clients deviate; further keys are its arguments.

    Attributes:
        clients: how many (dealt by the seed), or which ids.
    """

    clients: Clients = 1


@final
class Keep(_Table):
    """``[federation.keep]``: what the transcript stores.

    Attributes:
        rounds: ``all``, ``attacked`` (those in ``audit.rounds``), or their numbers.
        messages: kinds that are stored.
        max_megabytes: the run stops with an error before a cell's transcript grows beyond this.
    """

    rounds: Rounds = "attacked"
    messages: tuple[Message, ...] = ("broadcast", "update", "aggregate", "own")
    max_megabytes: Count = 4096


@final
class Federation(_Table):
    """``[federation]``: the protocol, and what it makes public.

    Attributes:
        protocol: registered name. options: its further public settings, by keyword.
        clients: N. cohort: fraction C of them selected per round. dropout: share of the cohort that fails.
        rounds: rounds played. batch_size: examples per local step. local_epochs: passes per round (fedavg).
        learning_rate, momentum: of the clients. server_rate: of the server.
        secure_sum: the server sees only the weighted sum. weighting: by number of examples, or all alike.
        sends: what an update holds; None: ``gradient`` (fedsgd), ``logits`` (logit protocols), ``delta`` (others).
        keep: what the transcript stores. behaviours: who deviates, and how.
    """

    protocol: Name = "fedsgd"
    clients: Count = 1
    cohort: Annotated[float, Field(gt=0, le=1)] = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    rounds: Count = 1
    batch_size: Count = 1
    local_epochs: Count = 1
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    server_rate: Positive = 1.0
    secure_sum: bool = False
    weighting: Literal["size", "uniform"] = "size"
    sends: Kind | None = None
    keep: Keep = Keep()
    behaviours: tuple[Behaviour, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """What an update holds: ``sends``, or the protocol's own way."""
        if self.sends is not None:
            return self.sends
        if self.protocol in ("fedmd", "fedgems", "dsfl"):
            return "logits"
        return "gradient" if self.protocol == "fedsgd" else "delta"

    @property
    def cohort_size(self) -> int:
        """Clients selected per round: C·N, rounded to the nearest whole client."""
        return int(self.cohort * self.clients + 0.5)


@final
class Threat(_Table):
    """``[threat]``: who is looking.

    Attributes:
        role: server, client or bystander. client: the adversary's id when it is a client.
        sees: kinds of messages; None: all that the role can see.
        changes: what a malicious server may alter; empty: honest but curious.
    """

    role: Literal["server", "client", "bystander"] = "server"
    sees: tuple[Message, ...] | None = None
    changes: tuple[Literal["parameters", "architecture", "addressing"], ...] = ()
    client: Natural | None = None


@final
class Grants(_Table):
    """``[grants]``: side knowledge handed to the adversary; each one used is printed beside the finding.

    Attributes:
        auxiliary: the auxiliary part of the data. labels: true labels behind each update.
        batch_norm: statistics of the private batch. defense: which defences the clients run.
        challenge: examples about which the adversary must decide.
    """

    auxiliary: bool = True
    labels: bool = False
    batch_norm: bool = False
    defense: bool = False
    challenge: bool = False


@final
class Audit(_Table):
    """``[audit]``: what is attacked, and how that is scored.

    Attributes:
        metrics: registered names, with arguments where they take some.
        rounds: rounds whose updates are attacked; negative ones count from the last.
        victims: updates attacked at most. distractors: M - 1 for identification.
        baselines: null adversaries to compare with; empty: all that fit each metric.
        controls: run the positive and negative control first. utility: measure held-out accuracy.
        bootstrap: resamples behind an interval.
        seeds: the federation is repeated with each; empty: once, with the scenario's seed.
    """

    metrics: tuple[Plugin, ...] = (
        Plugin(name="mse"), Plugin(name="psnr"), Plugin(name="ssim"), Plugin(name="identification"),
    )  # fmt: skip
    rounds: tuple[int, ...] = (0,)
    victims: Count = 20
    distractors: Count = 99
    baselines: tuple[str, ...] = ()
    controls: bool = True
    utility: bool = True
    bootstrap: Annotated[int, Field(ge=100)] = 2000
    seeds: tuple[Natural, ...] = ()


@final
class Policy(_Table):
    """``[policy]``: what is tolerated; a broken limit gives exit code 1.

    Attributes:
        max_gain: metric → largest tolerated gain over the null baseline (its lower bound is compared).
        min_accuracy: smallest tolerated held-out accuracy.
    """

    max_gain: dict[str, float] = Field(default_factory=dict)
    min_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


@final
class Tuning(_Table):
    """``[tuning]``: the data on which the defaults of this scenario were tuned; other data judge.

    Attributes:
        source, split: as in ``[data]``. note: what was tuned, in words.
    """

    source: str = ""
    split: Split = ""
    note: str = ""


@final
class Scenario(_Table):
    """A scenario. ``axes`` maps a path to its values; :func:`glasshouse.scenario.axes.cells` expands it.

    Attributes:
        name: names it in the report. summary: one sentence.
        seed: of the federation. attack_seed: of the adversary; neither can be computed from the other.
        axes_zipped: tables of paths whose values move together.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    summary: str = ""
    seed: Natural = 0
    attack_seed: Natural = 0
    data: Data = Data()
    model: Model = Model()
    federation: Federation = Federation()
    defenses: tuple[Plugin, ...] = ()
    threat: Threat = Threat()
    grants: Grants = Grants()
    attacks: tuple[Plugin, ...] = ()
    audit: Audit = Audit()
    policy: Policy = Policy()
    tuning: Tuning = Tuning()
    axes: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    axes_zipped: tuple[dict[str, tuple[Any, ...]], ...] = ()

    @property
    def sees(self) -> frozenset[Message]:
        """What the adversary sees: ``threat.sees``, or all that its role can under this federation."""
        if self.threat.sees is not None:
            return frozenset(self.threat.sees)
        if self.threat.role != "server":
            return frozenset({"broadcast"})
        return frozenset({"broadcast", "own", "aggregate" if self.federation.secure_sum else "update"})


@final
class Entry(_Table):
    """One line of a suite.

    Attributes:
        use: name of a preset, or a path (relative to the suite's file) that ends in ``.toml``.
        set: overrides, path → value. system: the part of the product that it shows (its time is printed).
    """

    use: Name
    set: dict[str, Any] = Field(default_factory=dict)
    system: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, raw: Any) -> Any:
        return {"use": raw} if isinstance(raw, str) else raw


@final
class SuiteFile(_Table):
    """A suite as written."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    summary: str = ""
    scenarios: Annotated[tuple[Entry, ...], Field(min_length=1)]


@final
class Member(_Table):
    """A scenario of a suite, with the part of the product that it shows (may be empty)."""

    scenario: Scenario
    system: str = ""


@final
class Suite(_Table):
    """Scenarios in one report. ``given``: the text of the file as written."""

    name: str
    summary: str = ""
    members: tuple[Member, ...]
    given: str = ""

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        """The scenarios, in order."""
        return tuple(m.scenario for m in self.members)
