"""One attack on one update in memory: no scenario, no files, no score."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, final

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from glasshouse.api.knowledge import known
from glasshouse.api.update import named_update
from glasshouse.attacks.base import Claim
from glasshouse.audit.attacking.call import call_attack, declared_grants
from glasshouse.audit.attacking.claims import Unit
from glasshouse.audit.attacking.needs import attack_of, find_refusal
from glasshouse.errors import BadScenario, BadValue, GlasshouseError, Inapplicable, in_a_line
from glasshouse.executors.base import choose_device
from glasshouse.executors.local import devices_here
from glasshouse.interfaces.modes import FAULTS, draws_at_random, mode_of
from glasshouse.limits import Count, Fix, Positive, check_value
from glasshouse.modalities.base import Modality
from glasshouse.modalities.image import Image
from glasshouse.models.adapt import adapt
from glasshouse.models.base import evaluated
from glasshouse.models.build import build, forward_hint, shortlist, state
from glasshouse.models.derivatives import derivative_fault, pass_fault
from glasshouse.models.handed_over import copied
from glasshouse.models.memory import keep
from glasshouse.outside.schema import freeze
from glasshouse.process import as_torch_starts
from glasshouse.rng import Rng
from glasshouse.scenario.plugins import plugin_problems
from glasshouse.scenario.problems import found_problems
from glasshouse.scenario.table import Plugin
from glasshouse.settings import PLAIN, Optimizer, Training, covers
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification
from glasshouse.tensors import check_finite
from glasshouse.transcript.cut import as_change
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Kind, Refusal, Terms, Update

__all__ = ["PreparedAttack", "attack", "view"]

LOG = logging.getLogger("glasshouse")

_DRAWS: Final = (
    "Network '%s' draws at random in the mode in which the client trained it, as dropout does. Nobody knows "
    "what it drew, so attacks do not repeat it: what they find is a lower end."
)
SERVER: Final = Threat(sees=frozenset({"broadcast", "update", "own"}))
"""The adversary for an update in memory: an honest-but-curious server."""


@final
@dataclass(frozen=True, kw_only=True)
class PreparedAttack:
    """An attack with its settings, to be called with a view."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @as_torch_starts()
    def __call__(self, view: View, *, seed: int = 0, device: str = "cpu") -> tuple[Claim, ...]:
        """The attack's claims about the view, checked as in an audit, but not scored.

        Args:
            view: what the adversary sees: from :func:`view`, or extracted from a transcript.
            seed: of the attack's randomness.
            device: where it runs: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.

        Raises:
            BadValue: no view, no such device, or a seed that is none.
            Inapplicable: the attack cannot run on this view; the error names what it needs.
        """
        device = _check_call(view, seed, device, name=self.name)
        plugin = attack_of(Plugin.model_validate(freeze({**self.settings, "name": self.name})))
        answer: tuple[Claim, ...] | Refusal | None = find_refusal(
            plugin, self.name, view.threat, view.grants, view.terms
        )
        if answer is None:
            pairs = [(r.round, client) for r in view.rounds for client in r.updates]
            unit = Unit(rounds=(pairs[0][0],), client=pairs[0][1]) if len(pairs) == 1 else Unit()
            visible = replace(view, grants=declared_grants(plugin, view.grants))
            rng = Rng.root(seed).child(f"attack/{self.name}").child(unit.name)
            answer = call_attack(
                plugin, visible, unit=unit, rng=rng, device=device, subject=f"attack '{self.name}'"
            )
        if isinstance(answer, Refusal):
            raise Inapplicable(**vars(answer))
        return answer


def attack(name: str, /, **settings: Any) -> PreparedAttack:
    """The attack registered as ``name`` with its settings, to be called with a view.

    Args:
        name: as shown by ``glasshouse list attacks``.
        **settings: its arguments, as listed by ``glasshouse show NAME``.

    Raises:
        BadScenario: no such attack, or unknown or invalid settings.

    Examples:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> image, label = torch.rand(1, 1, 8, 8), torch.tensor([3])
        >>> loss = nn.functional.cross_entropy(net(image), label)
        >>> seen = view(net, torch.autograd.grad(loss, net.parameters()), input_shape=(1, 8, 8))
        >>> (claim,) = attack("linear_input")(seen)
        >>> bool((claim.inputs - image).abs().max() < 1e-4)
        True
    """
    try:
        problems = plugin_problems("attacks", name, Plugin.model_validate(freeze({**settings, "name": name})))
    except ValidationError as error:
        problems = found_problems(error, Plugin)
    if problems:
        raise BadScenario(f"attack '{name}'", problems)
    return PreparedAttack(name=name, settings=settings)


def _check_call(view: Any, seed: Any, device: Any, *, name: str) -> str:
    """Refuse what no attack can be called with; the device's name.

    Raises:
        BadValue: says what it is.
    """
    if not isinstance(view, View):
        got, fix = f"an object of type {type(view).__name__}", "make it by gh.view(model, update, ...)"
        raise BadValue(f"attack '{name}'", needs="a view", got=got, fix=fix)
    if type(seed) is not int or seed < 0:
        got = f"{seed!r} of type {type(seed).__name__}"
        raise BadValue(f"attack '{name}'", needs="seed as an int from 0", got=got, fix="seed=0")
    kind, _, number = str(device).partition(":")
    return f"{choose_device(kind, devices_here())}:{number}".rstrip(":")


@as_torch_starts()
def view(
    model: nn.Module,
    update: Mapping[str, Any] | Sequence[Any],
    *,
    input_shape: tuple[int, int, int] | None = None,
    inputs: Modality | None = None,
    task: Task | None = None,
    examples: int = 1,
    sends: Kind = "gradient",
    batch_size: int | None = None,
    local_epochs: int = 1,
    learning_rate: float = 0.1,
    optimizer: Optimizer = PLAIN,
    training: Training | None = None,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    labels: Sequence[int] | None = None,
) -> View:
    """The view of a server that sent ``model`` to one client and received ``update`` from it.

    Args:
        model: a network, with the weights that the client received.
        update: tensors or arrays by parameter name, or in the order of ``model.parameters()`` or of its
            ``state_dict()``, with running statistics or without.
        input_shape: (C, H, W) of the client's pictures; their pixels are in [0, 1].
        inputs: what the client's examples look like, instead of ``input_shape``.
        task: the loss and the targets; None: as many classes as the network has outputs.
        examples: number of examples behind the update.
        sends: what the update is: the ``gradient`` of the mean loss, the ``delta`` of the parameters after
            local training, or the new ``parameters``.
        batch_size: examples per local step; None: all of them.
        local_epochs: passes of local training.
        learning_rate: of local training.
        optimizer: the client's optimizer (:class:`glasshouse.settings.Optimizer`).
        training: what else the client does in a step (:class:`glasshouse.settings.Training`); None: an
            ordinary step in the mode of ``model``, layer by layer: statistics of the batch where a batch
            norm is in training mode, or where the update's running statistics have moved.
        auxiliary: images (N, C, H, W) in [0, 1] and labels (N,) that the adversary has; grant ``auxiliary``.
        labels: the classes behind the update, where the adversary knows them; grant ``labels``.

    Raises:
        BadValue: the network does not accept such images, or the update does not match it or is not finite.
    """
    _check_numbers(examples, sends, batch_size, local_epochs, learning_rate)
    _check_types(optimizer=(optimizer, Optimizer), training=(training, Training | None))
    architecture, network = _network(model, inputs or input_shape, task)
    tensors, statistics = named_update(update, network, architecture.inputs.blank(1), sends=sends)
    check_finite({**tensors, **statistics}, subject="update in memory")
    training = _mode(model, network, statistics) if training is None else training
    _check_training(architecture, network, training, name=type(model).__name__)
    terms = Terms(
        protocol="fedsgd" if sends == "gradient" else "fedavg",
        architecture=architecture,
        sends=sends,
        clients=1,
        cohort=1,
        batch_size=batch_size or examples,
        local_epochs=local_epochs,
        learning_rate=learning_rate,
        optimizer=optimizer,
        training=training,
    )
    update_message = Update(
        round=0,
        client=0,
        kind=sends,
        tensors=tensors,
        buffers=statistics,
        examples=examples,
        steps=terms.steps(examples),
    )
    grants = known(auxiliary, labels, architecture, examples=examples)
    received = Broadcast(round=0, architecture=architecture, tensors=state(network))
    # Attacks read changes: new parameters hold the same information, as in a view of a transcript.
    change = as_change(update_message, received)
    first_round = RoundView(round=0, broadcast=received, updates={0: change})
    if draws_at_random(network, architecture.inputs.probes(4, Rng.root(0).torch()), training):
        LOG.warning(_DRAWS, type(model).__name__)
    return View(terms=replace(terms, sends=change.kind), threat=SERVER, rounds=(first_round,), grants=grants)


def _mode(model: nn.Module, network: nn.Module, statistics: Mapping[str, Tensor]) -> Training:
    """The mode that nobody stated: the model's, unless running statistics came that training has moved."""
    own, state = mode_of(model), network.state_dict()
    moved = any(not torch.equal(t.to(state[name]), state[name]) for name, t in statistics.items())
    if own.mode == "training" or not moved:
        return own
    LOG.warning(
        "The running statistics of the update are not those of the network: the client trained in training "
        "mode, although the network stands in evaluation. Otherwise say training=Training(mode='evaluation')."
    )
    return Training(mode="training")


def _check_numbers(
    examples: int, sends: Kind, batch_size: int | None, local_epochs: int, learning_rate: float
) -> None:
    """Refuse numbers that no client can have.

    Raises:
        BadValue: names the argument.
    """
    stated: dict[str, tuple[Any, Any]] = {
        "examples": (examples, Annotated[Count, Fix("say how many examples are behind the update")]),
        "sends": (sends, Literal["gradient", "delta", "parameters"]),
        "batch_size": (
            batch_size,
            Annotated[Count, Fix("leave it out where a step takes all examples")] | None,
        ),
        "local_epochs": (local_epochs, Annotated[Count, Fix("1 for a single pass")]),
        "learning_rate": (learning_rate, Annotated[Positive, Fix("give the rate of the client's steps")]),
    }
    for name, (value, hint) in stated.items():
        if name not in ("sends", "learning_rate") and not isinstance(value, int | None):
            raise BadValue("update in memory", needs=f"{name} as an int", got=repr(value), fix="round it")
        check_value("update in memory", name, value, hint)


def _check_types(**given: tuple[object, Any]) -> None:
    """Refuse settings that are not of the type that holds them."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            known = name.capitalize()
            raise BadValue(
                "update in memory",
                needs=f"{name} as a glasshouse.settings.{known}",
                got=f"an object of type {type(value).__name__}",
                fix=f"{name}={known}(...), with the keys of [federation.{name}] in docs/scenario.md",
            )


def _check_training(architecture: Architecture, network: nn.Module, training: Training, *, name: str) -> None:
    """Refuse patterns that name no layer, and a mode in which the network does not run.

    Raises:
        BadValue: names the pattern, or what fails.
    """
    layers = [name for name, _ in network.named_modules()]
    tensors = list(network.state_dict())
    named = {"frozen": layers, "fixed": [*layers, *tensors], "personal": [*layers, *tensors]}
    for key, names in named.items():
        for pattern in getattr(training, key):
            if not any(covers((pattern,), one) for one in names):
                raise BadValue(
                    "update in memory",
                    needs=f"training.{key}: patterns of names of the network's layers",
                    got=f"'{pattern}'",
                    fix=f"its layers: {shortlist([one for one in layers if one])}",
                )
    if (fault := pass_fault(architecture, training)) is not None:
        raise BadValue(f"network '{name}'", needs=fault[0], got=fault[1], fix=fault[2])


def _network(
    model: nn.Module, inputs: Modality | tuple[int, int, int] | None, task: Task | None
) -> tuple[Architecture, nn.Module]:
    """The registered architecture of the network, and a copy that was differentiated on an example."""
    if inputs is None:
        raise BadValue(
            f"network '{type(model).__name__}'",
            needs="what its examples look like",
            got="neither input_shape nor inputs",
            fix="give input_shape=(C, H, W) of pictures, or inputs=glasshouse.modalities...",
        )
    if task is not None and not isinstance(task, Task):
        raise BadValue(
            f"network '{type(model).__name__}'",
            needs="task as an object of glasshouse.tasks",
            got=f"an object of type {type(task).__name__}",
            fix="task=Classification(classes=...), or leave it out: as many classes as outputs",
        )
    sides: Any = (1, 1, 1) if isinstance(inputs, Modality) else inputs
    is_shape = isinstance(sides, tuple | list) and all(isinstance(side, int) for side in sides)
    if not is_shape or len(sides) != 3 or min(sides) < 1:
        raise BadValue(
            f"network '{type(model).__name__}'",
            needs="input_shape = (C, H, W) of one picture",
            got=f"input_shape = {sides!r}",
            fix="leave the batch out, and say the channels: (1, 28, 28); no pictures: inputs=...",
        )
    described = inputs if isinstance(inputs, Modality) else Image(size=tuple(sides))
    name = keep(model)
    architecture = Architecture(name=name, inputs=described, task=task or _classes(model, described))
    network = build(architecture)
    if (fault := derivative_fault(architecture)) is not None:
        raise BadValue(f"network '{type(model).__name__}'", needs=fault[0], got=fault[1], fix=fault[2])
    return architecture, network


def _classes(model: nn.Module, inputs: Modality) -> Classification:
    """As many classes as the network has outputs.

    Raises:
        BadValue: it does not run on such examples, or does not have two or more outputs: not a classifier.
    """
    subject = f"network '{type(model).__name__}'"
    try:
        own = adapt(copied(model).cpu())  # adapting changes layers: the user's network stays as it is
        with evaluated(own):
            shape = tuple(own(inputs.blank(1)).shape)
    except GlasshouseError:
        raise
    except FAULTS as error:
        raise BadValue(
            subject,
            needs=f"a forward pass on {inputs.nouns} {inputs.shape}",
            got=in_a_line(error),
            fix=forward_hint(error),
        ) from error
    if len(shape) != 2 or shape[1] < 2:
        raise BadValue(
            subject,
            needs="logits (B, K) of at least two classes, or the task that it was trained for",
            got=f"{shape} for one {inputs.noun}",
            fix="give task=Multilabel(targets=1) for one logit, or another of glasshouse.tasks",
        )
    return Classification(classes=shape[1])
