"""A scenario as frozen data: one federation, what is done to it, and how that is measured.

Each class is one table of the TOML file (docs/scenario.md lists every key). Nothing here reads files or
builds anything: :mod:`glasshouse.scenario.load` does the first, ``audit.build`` the second. Literals that
also live in other packages of this layer are repeated, and a test holds them equal.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, final

from pydantic import Field, model_validator

from glasshouse.interfaces import traits_of
from glasshouse.scenario.table import (
    Arguments,
    Clients,
    Epsilon,
    Guard,
    Message,
    Model,
    Name,
    Plugin,
    Rounds,
    Split,
)
from glasshouse.settings import Count, Natural, Optimizer, Positive, Share, Table, move_momentum
from glasshouse.wire import Kind


@final
class Domains(Table):
    """``[data.domains]``: some classes private in one domain, all else public (logit protocols).

    Attributes:
        targets: private classes, dealt by the seed unless ``data.private_classes`` names them; 0: no domains.
        identities: classes that take part.
        per_class: images of each.
        sensitive: public private-domain ones.
        shifts: registered transforms that make the public domain.
        other: source of a natural one.
        same_photos: shifted are the very photos that are also private; False: others of the same class.
        heldout: share of each target's private images that only measures utility.
        hidden: rows that count.
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
    """``[data]``: where examples come from, and how they are dealt to roles.

    Attributes:
        source: ``digits``, or a registered kind with a path or name: ``npz:PATH``, ``text:PATH``, ...
        tokenizer: of sentences: ``words``, ``bytes``, or the path of a tokenizer's file or folder.
        length: of sentences, in tokens, marks included; longer ones are cut.
        resize: side in pixels; None keeps the size.
        channels: 3 repeats grey ones, 1 turns colour into grey.
        private_source: another data set that private images come from, made to fit; empty: ``source``.
        private_split: split that the part comes from; empty: dealt by the seed from all that the others
            leave.
        auxiliary_split: as ``private_split``.
        public_split: split that the part comes from; empty: dealt by the seed from all that the others leave.
        heldout_split: as ``private_split``.
        deal: what is dealt to parts: single images, or whole labels (people, classes).
        people: who is in a picture: as the data say (``groups``), or its label.
        examples: private examples per client.
        members: clients that hold the challenge example, each in place of one of theirs.
        auxiliary: images in that part.
        public: images in that part.
        heldout: images in that part.
        partition: registered way to spread private images over clients.
        alpha: of ``dirichlet``.
        private_classes: labels in the part; empty: all.
        auxiliary_classes: labels in the part; empty: all.
        public_classes: labels in the part; empty: all.
        heldout_classes: labels in the part; empty: all.
        images_are_public: no need to blur; None: as the source says.
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
    private_classes: tuple[Natural, ...] = ()
    auxiliary_classes: tuple[Natural, ...] = ()
    public_classes: tuple[Natural, ...] = ()
    heldout_classes: tuple[Natural, ...] = ()
    images_are_public: bool | None = None
    domains: Domains = Domains()


@final
class Behaviour(Plugin):
    """``[[federation.behaviours]]``: how some clients deviate; further keys are its arguments.

    Attributes:
        clients: how many (dealt by the seed), or which ids.
    """

    clients: Clients = 1


@final
class Keep(Table):
    """``[federation.keep]``: what the transcript stores.

    Attributes:
        rounds: ``all``, ``attacked`` (those in ``audit.rounds``; with logits all), or their numbers.
    """

    rounds: Rounds = "attacked"


@final
class Federation(Table):
    """``[federation]``: the protocol, and what it makes public.

    Attributes:
        protocol: registered name.
        options: its further public settings, by keyword.
        clients: N.
        cohort: fraction C of them selected per round.
        dropout: share of the cohort that fails.
        rounds: rounds played.
        batch_size: examples per local step.
        local_epochs: passes per round (fedavg).
        learning_rate: of the clients.
        optimizer: of the clients.
        server_rate: of the server.
        secure_sum: the server sees only the weighted sum.
        weighting: by number of examples, or all alike.
        sends: kind of update; None: the protocol's own (fedsgd: ``gradient``, fedavg: ``delta``).
        keep: what the transcript stores.
        behaviours: who deviates, and how.
        client_models: models that clients run instead of the agreed one, in turn (logit protocols).
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
    server_rate: Positive = 1.0
    secure_sum: bool = False
    weighting: Literal["size", "uniform"] = "size"
    sends: Kind | None = None
    keep: Keep = Keep()
    behaviours: tuple[Behaviour, ...] = ()
    client_models: tuple[Plugin, ...] = ()
    options: Arguments = Field(default_factory=dict)

    _old = model_validator(mode="before")(move_momentum)

    @property
    def kind(self) -> Kind:
        """What an update holds: ``sends``, or what the protocol's class declares."""
        return self.sends or traits_of(self.protocol).sends

    @property
    def cohort_size(self) -> int:
        """Clients selected per round: C·N, rounded to the nearest whole client."""
        return int(self.cohort * self.clients + 0.5)


@final
class Threat(Table):
    """``[threat]``: who is looking.

    Attributes:
        role: server, client or bystander.
        client: the adversary's id when it is a client.
        sees: kinds of messages; None: all that the role can.
        changes: what a malicious server may alter.
    """

    role: Literal["server", "client", "bystander"] = "server"
    sees: tuple[Message, ...] | None = None
    changes: tuple[Literal["parameters", "architecture", "addressing"], ...] = ()
    client: Natural | None = None


@final
class Grants(Table):
    """``[grants]``: side knowledge handed to the adversary; each one used is printed beside the finding.

    Attributes:
        auxiliary: the auxiliary part of the data.
        labels: true labels behind each update.
        batch_norm: statistics of the private batch.
        defense: which defences the clients run.
        challenge: examples about which the adversary must decide.
        cohorts: who took part in each round; a client or bystander then reads the sums off successive models.
    """

    auxiliary: bool = True
    labels: bool = False
    batch_norm: bool = False
    defense: bool = False
    challenge: bool = False
    cohorts: bool = False


@final
class Audit(Table):
    """``[audit]``: what is attacked, and how that is scored.

    Attributes:
        metrics: registered names, with arguments where they take some.
        rounds: rounds whose updates are attacked; negative ones count from the last.
        victims: updates attacked at most.
        distractors: M - 1 for identification.
        baselines: null adversaries to compare with; empty: all that fit each metric.
        controls: run the positive and negative control first.
        utility: measure held-out accuracy.
        seeds: the federation is repeated with each; empty: once, with the scenario's seed.
        contrast: attack (its label, or its name) whose paired difference to every other attack is reported.
        epsilon: the ε that is claimed, and how it is tested.
        auditor: who answers for the audit; printed on the report, else ``GLASSHOUSE_AUDITOR`` is.
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
    seeds: tuple[Natural, ...] = ()
    contrast: str = ""
    epsilon: Epsilon = Epsilon()
    auditor: str = ""


@final
class Policy(Table):
    """``[policy]``: what is tolerated; a broken limit gives exit code 1, one not shown to hold gives 3.

    Attributes:
        max_gain: metric → largest tolerated gain over the null baseline (compared with the whole interval).
        min_accuracy: smallest tolerated held-out accuracy.
    """

    max_gain: dict[str, float] = Field(default_factory=dict)
    min_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


@final
class Tuning(Table):
    """``[tuning]``: the data on which the defaults of this scenario were tuned; other data judge.

    Attributes:
        source: as in ``[data]``.
        split: as in ``[data]``.
        note: what was tuned, in words.
    """

    source: str = ""
    split: Split = ""
    note: str = ""


@final
class Scenario(Table):
    """A scenario. ``axes`` maps a path to its values; :func:`glasshouse.scenario.axes.cells` expands it.

    Attributes:
        name: names it in the report.
        summary: one sentence.
        seed: of the federation.
        attack_seed: of the adversary; neither can be computed from the other.
        captured: folder of a federation that ran, which is audited instead of a simulation; set by
            ``--captured``, which fills in ``federation`` and ``model``.
        axes_zipped: tables of paths whose values move together.
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

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Scenario":
        """A scenario from plain data, the tables of a TOML file as dictionaries; checked like a file.

        Raises:
            BadScenario: all that is wrong.

        Examples:
            >>> Scenario.from_dict({"name": "mine", "attacks": ["idlg"]}).data.source
            'digits'
        """
        from glasshouse.scenario.load import from_dict  # noqa: PLC0415 - it imports this module

        return from_dict(raw)

    @property
    def sees(self) -> frozenset[Message]:
        """What the adversary sees: ``threat.sees``, or all that its role can under this federation."""
        if self.threat.sees is not None:
            return frozenset(self.threat.sees)
        if self.threat.role != "server":
            return frozenset({"broadcast"})
        return frozenset({"broadcast", "own", "aggregate" if self.federation.secure_sum else "update"})
