"""The site's policy: what may leave, as one TOML file with strict types."""

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import check_size
from glasshouse.outside.schema import Described, Text, parse_as

COUNTS: Final = ("num-examples", "num_examples", "NUM_STEPS_CURRENT_ROUND")
"""Names under which frameworks send the number of examples (or steps) behind an update."""
_FIX: Final = "correct the policy; docs/gate.md lists every key"

Positive = Annotated[float, Field(gt=0, le=1e30)]
NotNegative = Annotated[float, Field(ge=0, le=1e30)]
Count = Annotated[int, Field(ge=1, le=2**40)]
Names = Annotated[tuple[Text, ...], Field(max_length=1000)]
Hash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Examples(Described):
    """How the number of examples is treated.

    Attributes:
        fields: names under which it is sent.
        least: smallest number for which a train message may leave.
        most: largest number that may be sent: it bounds what its digits can carry.
        multiple: what is sent is rounded down to a multiple of this, so that one example more does not show.
        fixed: if above 0, this constant is sent in its place.
    """

    fields: Names = COUNTS
    least: Count = 1
    most: Count = 2**20
    multiple: Count = 1
    fixed: Annotated[int, Field(ge=0, le=2**40)] = 0

    @model_validator(mode="after")
    def _whole(self) -> "Examples":
        if self.multiple > self.least:
            raise ValueError("multiple should be at most least, or n would be sent as 0")
        if self.least > self.most:
            raise ValueError("least should be at most most, or no n would be sent")
        return self


class ShownNoise(Described):
    """Noise that the app must have added: it must show in the last layer.

    Attributes:
        layer: name of the last layer's weight, (K, F), of a network trained with cross-entropy.
        std: least standard deviation of the noise on each number.
        unclear: what to do with a message in which nothing can be told.
    """

    layer: Text
    std: Positive
    unclear: Literal["refuse", "pass"] = "refuse"


class Mechanism(Described):
    """Clipping and Gaussian noise that the gate adds itself; its ε holds whatever the uploaded code does.

    Attributes:
        clip: the change is scaled down to this L2 norm over all tensors together.
        noise_multiplier: standard deviation of each number's noise, divided by ``clip``.
        delta: of (ε, δ).
        epsilon: a message that would spend more than this on the data set is refused.
        neighbours: ``replace``: any two updates that the site could have sent, distance 2·clip; covers one
            record and the whole data set alike, as uploaded code may react to one record in any way.
            ``zero``: the site's update against zeros, distance clip; covers whether the site took part.
    """

    clip: Positive
    noise_multiplier: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    epsilon: Annotated[float, Field(gt=0, le=1e6)]
    neighbours: Literal["replace", "zero"] = "replace"


class Preflight(Described):
    """The site's own examples, searched for in each update before it leaves.

    Attributes:
        loader: ``module:function`` of the site, returns (network, inputs, labels).
        most: largest number of examples that may be recognised in an update.
        seconds: time limit of one check; beyond it the message is refused.
    """

    loader: Text
    most: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0


class DocumentRule(Described):
    """Documents of bytes (trees, statistics, survival tables) that may leave, judged by the document guard.

    Attributes:
        rows: an ``npy`` file of the site's own rows (N, F) as the trees see them; empty: rules about cells
            and values are left out.
        fewest: smallest number of people that a number may be about.
        formats: media names that may leave; empty: any that can be read.
    """

    rows: Annotated[str, Field(max_length=1000)] = ""
    fewest: Annotated[int, Field(ge=2, le=10_000)] = 5
    formats: Names = ()


class Out(Described):
    """What may leave.

    Attributes:
        records: names of a message's parts (Flower's records).
        fields: names of numbers that may leave beside the tensors, after ``metrics`` was applied.
        unlisted: what happens to a number, list or document whose name is not listed.
        metrics: what happens to a listed number: removed, refused, rounded or passed on.
        metrics_step: unit to which metrics are rounded.
        metrics_range: metrics are clamped to this range before they are rounded.
        dtypes: types of the tensors that may change.
        buffers: tensors of other types: ``fixed`` sends them back as received.
        norm: largest L2 norm of the change of all tensors together; 0: not limited.
        sparsest: least share of numbers that must have changed.
        grid: the change is rounded to multiples of this; 0: not rounded.
    """

    records: Names = ("arrays", "metrics")
    fields: Names = ()
    unlisted: Literal["refuse", "strip"] = "refuse"
    metrics: Literal["strip", "refuse", "round", "pass"] = "strip"
    metrics_step: Positive = 0.05
    metrics_range: tuple[float, float] = (0.0, 10.0)
    dtypes: Names = ("float32",)
    buffers: Literal["refuse", "fixed"] = "refuse"
    norm: NotNegative = 0.0
    sparsest: Annotated[float, Field(ge=0, le=1)] = 0.0
    grid: NotNegative = 0.0
    examples: Examples = Examples()
    noise: ShownNoise | None = None
    mechanism: Mechanism | None = None
    preflight: Preflight | None = None
    document: DocumentRule | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "Out":
        if self.norm == 0 and self.mechanism is None:
            raise ValueError("norm should be above 0, unless [out.mechanism] clips")
        if not self.metrics_range[0] < self.metrics_range[1]:
            raise ValueError("metrics_range should be a low and a higher number")
        return self


class In(Described):
    """What may arrive.

    Attributes:
        norm_step: largest L2 norm of the change between two models that were received; 0: not limited.
        documents: most bytes of configuration in one message.
    """

    norm_step: NotNegative = 0.0
    documents: Count = 65_536


class Budget(Described):
    """How much may leave.

    Attributes:
        rounds: train messages of one run.
        per_day: messages of any kind in one day (UTC).
        bytes: bytes of one run.
        largest: bytes of one message, sent or received.
    """

    rounds: Count = 100
    per_day: Count = 1000
    bytes: Count = 2**30
    largest: Count = 2**28


class LogFile(Described):
    """Where decisions are written, and the key that signs them; relative to the policy's folder."""

    file: Text = "gate.jsonl"
    key: Text = "gate.ed25519"


class Egress(Described):
    """The rule of the network that lets only the gate talk to the outside.

    Attributes:
        probe: command prefix that runs a program as uploaded apps run (``["sudo", "-u", "app"]``). The gate
            starts its probe with it; the probe must fail to reach the server.
        required: refuse to start unless the probe failed to reach it.
    """

    probe: tuple[Text, ...] = ()
    required: bool = True


class Policy(Described):
    """A site's policy.

    Attributes:
        format: version of the file; 1.
        site: the site's name, for its log.
        dataset: the data set that ε is counted for.
        apps: SHA-256 of the apps or jobs that may run; empty: any.
        kinds: kinds of answers that may leave.
        secure_sum: whether masked vectors (SecAgg+), which cannot be judged, may leave; ``required``: updates
            leave in no other way.
        out, incoming, budget, log, egress: the tables of the file (``incoming`` is ``[in]``).
        digest: SHA-256 of the file.
        folder: the folder that its paths are relative to.
    """

    format: Literal[1]
    site: Text
    dataset: Text
    apps: tuple[Hash, ...] = ()
    kinds: Names = ("train", "evaluate")
    secure_sum: Literal["refused", "allowed", "required"] = "refused"
    out: Out
    incoming: Annotated[In, Field(alias="in")] = In()
    budget: Budget = Budget()
    log: LogFile = LogFile()
    egress: Egress = Egress()
    digest: str = ""
    folder: Path = Path()

    @property
    def outside_epsilon(self) -> tuple[str, ...]:
        """What leaves and is not covered by the gate's own noise."""
        parts = ["that and when a message was sent or refused"]
        if self.out.examples.fixed == 0:
            parts.append("the number of examples")
        if self.out.metrics in ("round", "pass") and self.out.fields:
            parts.append(f"the fields {', '.join(self.out.fields)}")
        if self.secure_sum != "refused":
            parts.append("masked vectors of secure sums")
        return tuple(parts)


def read_policy(path: Path) -> Policy:
    """Read and check the policy at ``path``.

    Raises:
        BadFile: unreadable, not TOML, an unknown key, or a value out of range; the first problem is named.
    """
    subject = f"policy '{path}'"
    try:
        data = path.read_bytes()
        check_size(len(data), limits.TOML_BYTES, subject=subject)
        table = tomllib.loads(data.decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFile(subject, needs="a TOML file", got=str(error), fix=_FIX) from error
    return parse_policy(table, digest=hashlib.sha256(data).hexdigest(), folder=path.resolve().parent)


def parse_policy(table: dict[str, object], *, digest: str = "", folder: Path = Path()) -> Policy:
    """Check the policy in ``table``, as read from TOML.

    Raises:
        BadFile: an unknown key, or a value out of range; the first problem is named.

    Examples:
        >>> parse_policy({"format": 1, "site": "w", "dataset": "d", "out": {"norm": 2.5}}).out.metrics
        'strip'
    """
    if surplus := {"digest", "folder", "incoming"} & table.keys():
        raise BadFile("policy", needs="known keys", got=", ".join(sorted(surplus)), fix=_FIX)
    return parse_as(Policy, table, subject="policy", fix=_FIX).model_copy(
        update={"digest": digest, "folder": folder}
    )
