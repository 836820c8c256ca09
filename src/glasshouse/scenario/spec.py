"""A scenario as frozen data: one federation, the attacks and defences, and how leakage is measured.

Each class is one table of the TOML file (docs/scenario.md lists every key). Nothing here reads files or
builds objects: :mod:`glasshouse.scenario.load` reads, ``audit.build`` builds. Literals defined in other
packages of this layer are repeated here, and a test keeps them equal.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

from pydantic import Field

from glasshouse.interfaces import stated_training, traits_of
from glasshouse.scenario.table import (
    Arguments,
    Clients,
    Duration,
    Epsilon,
    Guard,
    Message,
    Model,
    Name,
    Plugin,
    Rounds,
    Split,
    seconds_of,
)
from glasshouse.settings import Count, Natural, Optimizer, Positive, Share, Table, Training
from glasshouse.wire import Kind


@final
class Domains(Table):
    """``[data.domains]``: some classes are private in one domain, all else is public (logit protocols).

    Attributes:
        targets: number of private classes, drawn by the seed unless ``data.private_classes`` names them;
            0: no domains.
        identities: number of classes used; 0: all.
        per_class: images used per class; 0: all.
        sensitive: maximal number of public private-domain images; 0: no limit.
        shifts: registered transforms that produce the public domain.
        other: source of another, natural domain.
        same_photos: shift the same photos that are also private; False: others of the same class.
        heldout: share of each target's private images that only measures utility.
        hidden: rows that are scored, as shares of the height; empty: those that ``shifts`` hide.
    """

    targets: Natural = 0
    identities: Natural = 0
    per_class: Natural = 0
    sensitive: Natural = 0
    shifts: tuple[Plugin, ...] = ()
    other: str = ""
    same_photos: bool = True
    heldout: Share = 0.2
    hidden: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()


@final
class Data(Table):
    """``[data]``: the source of examples, and their assignment to roles.

    Attributes:
        source: ``digits``, or a registered kind with a path or name: ``npz:PATH``, ``text:PATH``, ...
        tokenizer: of sentences: ``words``, ``bytes``, or the path of a tokenizer's file or folder.
        length: maximal length of sentences in tokens, special tokens included; longer ones are cut.
        resize: side of images in pixels; None keeps the size.
        channels: 3 repeats grey images in three channels, 1 converts colour to grey.
        private_source: another data set for the private images, converted to fit; empty: ``source``.
        private_split: split of the private part; empty: drawn by the seed from all that the others leave.
        auxiliary_split: as ``private_split``.
        public_split: as ``private_split``.
        heldout_split: as ``private_split``.
        deal: unit of assignment to the parts: single images, or whole labels (people, classes).
        people: who is in an image: given by the data (``groups``), or by its label.
        examples: private examples per client.
        members: number of clients that hold the challenge example, each instead of one of its own.
        auxiliary: number of auxiliary images.
        public: number of public images.
        heldout: number of held-out images.
        partition: registered partitioner of private images into clients.
        alpha: concentration of ``dirichlet``.
        ratio: examples of the largest client for one of the smallest, of ``unequal``.
        private_classes: labels in the private part; empty: all.
        auxiliary_classes: labels in the auxiliary part; empty: all.
        public_classes: labels in the public part; empty: all.
        heldout_classes: labels in the held-out part; empty: all.
        images_are_public: images need no blurring; None: as the source declares.
        task: loss and targets: a registered task with its settings; None: as the labels suggest.
        domains: roles by class and domain.
    """

    source: Name = "digits"
    tokenizer: Name = "words"
    length: Count = 32
    resize: Count | None = None
    channels: Literal[1, 3] | None = None
    private_source: str = ""
    private_split: Split = ""
    auxiliary_split: Split = ""
    public_split: Split = ""
    heldout_split: Split = ""
    deal: Literal["image", "label"] = "image"
    people: Literal["groups", "label"] = "groups"
    examples: Count = 1
    members: Natural = 0
    auxiliary: Natural = 200
    public: Natural = 0
    heldout: Natural = 200
    partition: Name = "iid"
    alpha: Positive | None = None
    ratio: Annotated[float, Field(ge=1)] | None = None
    private_classes: tuple[Natural, ...] = ()
    auxiliary_classes: tuple[Natural, ...] = ()
    public_classes: tuple[Natural, ...] = ()
    heldout_classes: tuple[Natural, ...] = ()
    images_are_public: bool | None = None
    task: Plugin | None = None
    domains: Domains = Domains()


@final
class Behaviour(Plugin):
    """``[[federation.behaviours]]``: how some clients deviate; further keys are its arguments.

    Attributes:
        clients: number of clients (drawn by the seed), or their ids.
    """

    clients: Clients = 1


@final
class Keep(Table):
    """``[federation.keep]``: what the transcript stores.

    Attributes:
        rounds: ``all``, ``attacked`` (those in ``audit.rounds``; all under logit protocols), or numbers.
    """

    rounds: Rounds = "attacked"


@final
class Federation(Table):
    """``[federation]``: the protocol and its public settings.

    Attributes:
        protocol: registered name.
        options: further public settings of the protocol, by keyword.
        clients: N, number of clients.
        cohort: C, fraction of clients selected per round.
        dropout: share of the cohort that fails.
        rounds: number of rounds.
        batch_size: examples per local step.
        local_epochs: passes per round (fedavg).
        learning_rate: learning rate of the clients.
        optimizer: optimizer of the clients.
        training: what else clients do in a local step: mode, precision, clipping, ...
        server_rate: learning rate of the server.
        secure_sum: secure aggregation: the server sees only the weighted sum.
        weighting: weight clients by number of examples, or equally.
        sends: kind of update; None: the protocol's own (fedsgd: ``gradient``, fedavg: ``delta``).
        keep: what the transcript stores.
        behaviours: deviating clients.
        client_models: models assigned to clients in turn instead of the agreed one (logit protocols).
    """

    protocol: Name = "fedsgd"
    clients: Count = 1
    cohort: Annotated[float, Field(gt=0, le=1)] = 1.0
    dropout: Share = 0.0
    rounds: Count = 1
    batch_size: Count = 1
    local_epochs: Count = 1
    learning_rate: Positive = 0.1
    optimizer: Optimizer = Optimizer()
    training: Training = Training()
    server_rate: Positive = 1.0
    secure_sum: bool = False
    weighting: Literal["size", "uniform"] = "size"
    sends: Kind | None = None
    keep: Keep = Keep()
    behaviours: tuple[Behaviour, ...] = ()
    client_models: tuple[Plugin, ...] = ()
    options: Arguments = Field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Kind of update: ``sends``, or the default of the protocol's class."""
        return self.sends or traits_of(self.protocol).sends

    @property
    def local(self) -> Training:
        """What clients do in a step: ``training``, with its mode and what the protocol's options state."""
        return stated_training(self.protocol, self.options, self.training).in_mode_of(self.kind)

    @property
    def cohort_size(self) -> int:
        """Clients selected per round: C·N, rounded to the nearest whole client."""
        return int(self.cohort * self.clients + 0.5)


@final
class Threat(Table):
    """``[threat]``: the adversary.

    Attributes:
        role: server, client or bystander.
        client: the adversary's id if it is a client.
        sees: kinds of messages that it observes; None: all that the role can observe.
        changes: what a malicious server may change.
    """

    role: Literal["server", "client", "bystander"] = "server"
    sees: tuple[Message, ...] | None = None
    changes: tuple[Literal["parameters", "architecture", "addressing"], ...] = ()
    client: Natural | None = None


@final
class Grants(Table):
    """``[grants]``: side knowledge of the adversary; each grant in use is printed next to the finding.

    Attributes:
        auxiliary: the auxiliary part of the data.
        labels: true labels of the batch behind each update.
        batch_norm: batch-norm statistics of the private batch.
        defense: which defences the clients run.
        challenge: examples about which the adversary must decide.
        cohorts: who took part in each round; a client or bystander then infers sums from successive models.
    """

    auxiliary: bool = True
    labels: bool = False
    batch_norm: bool = False
    defense: bool = False
    challenge: bool = False
    cohorts: bool = False


@final
class Audit(Table):
    """``[audit]``: which updates are attacked, and how the attacks are scored.

    Attributes:
        metrics: registered names, with arguments if they take any; without: those of what the attacks claim,
            in the data's modality.
        rounds: rounds whose updates are attacked; negative numbers count from the last round.
        victims: maximal number of attacked updates.
        distractors: M - 1 for identification.
        baselines: null adversaries to compare with; empty: all that fit each metric.
        controls: run the positive and negative control first.
        utility: measure held-out accuracy.
        blocks: draws of everything random over which the victims are split: federations with seeds ``seed``,
            ``seed + 1``, ...; a verdict about a scenario needs at least 4.
        seeds: repeat the federation with each of these, with ``victims`` each; empty: ``blocks`` times.
        contrast: attack (label or name) whose paired difference to every other attack is reported.
        margin: share of victims that may come out before a setting counts as leaking, in [0.001, 0.5].
        planted: canaries whose updates are sent undefended, to see whether the attacks find them: the power
            behind a silence; 0: none.
        epsilon: the claimed ε, and how it is tested.
        auditor: who is responsible for the audit, printed on the report; default: ``GLASSHOUSE_AUDITOR``.
        budget: time of one core for what ``attacks = "auto"`` chooses: ``90 s``, ``10 min``, ``2 h``.
        auto: written by ``attacks = "auto"``: what it chose and left out, and why.
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
    blocks: Count = 1
    seeds: tuple[Natural, ...] = ()
    contrast: str = ""
    margin: Annotated[float, Field(ge=0.001, le=0.5)] = 0.1
    planted: Natural = 8
    epsilon: Epsilon = Epsilon()
    auditor: str = ""
    budget: Duration = "10 min"
    auto: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The budget in seconds."""
        return seconds_of(self.budget)


@final
class Policy(Table):
    """``[policy]``: limits on leakage; exit code 1 if one is broken, 3 if one is not shown to hold.

    Attributes:
        max_gain: metric → largest tolerated gain over the null baseline (compared with the whole interval).
        min_accuracy: smallest tolerated held-out accuracy.
    """

    max_gain: dict[str, float] = Field(default_factory=dict)
    min_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


@final
class Tuning(Table):
    """``[tuning]``: the data on which this scenario's defaults were tuned, disjoint from the evaluation data.

    Attributes:
        source: as in ``[data]``.
        split: as in ``[data]``.
        note: what was tuned, in words.
    """

    source: str = ""
    split: Split = ""
    note: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Draw:
    """One draw of everything random in a cell: its federation's seed, and how many updates are attacked."""

    seed: int
    victims: int


@final
class Scenario(Table):
    """A scenario. ``axes`` maps a path to its values; :func:`glasshouse.scenario.axes.cells` expands it.

    Attributes:
        name: name in the report.
        summary: one sentence.
        seed: seed of the federation.
        attack_seed: seed of the adversary, independent of ``seed``.
        captured: folder of a recorded federation, which is audited instead of a simulation; set by
            ``--captured``, which fills in ``federation`` and ``model``.
        axes_zipped: tables of paths whose values vary together.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    summary: str = ""
    seed: Natural = 0
    attack_seed: Natural = 0
    captured: str = ""
    data: Data = Data()
    model: Model = Model()
    federation: Federation = Federation()
    defenses: tuple[Plugin, ...] = ()
    guard: Guard = Guard()
    threat: Threat = Threat()
    grants: Grants = Grants()
    attacks: tuple[Plugin, ...] = ()
    audit: Audit = Audit()
    policy: Policy = Policy()
    tuning: Tuning = Tuning()
    axes: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    axes_zipped: tuple[dict[str, tuple[Any, ...]], ...] = ()

    @property
    def draws(self) -> tuple[Draw, ...]:
        """The federations behind one cell.

        ``audit.seeds`` repeats the federation with all its victims; ``audit.blocks`` splits the victims over
        federations with seeds from ``seed`` on, so that each has a model, a partition and data of its own.
        """
        audit = self.audit
        if audit.seeds:
            return tuple(Draw(seed=seed, victims=audit.victims) for seed in audit.seeds)
        return tuple(
            Draw(seed=self.seed + block, victims=len(range(block, audit.victims, audit.blocks)))
            for block in range(audit.blocks)
        )

    @property
    def sees(self) -> frozenset[Message]:
        """Messages that the adversary observes: ``threat.sees``, or all that its role permits."""
        if self.threat.sees is not None:
            return frozenset(self.threat.sees)
        if self.threat.role != "server":
            return frozenset({"broadcast"})
        return frozenset({"broadcast", "own", "aggregate" if self.federation.secure_sum else "update"})
