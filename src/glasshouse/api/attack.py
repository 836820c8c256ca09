"""One attack on one update in memory: no scenario, no files, no score."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, final

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from glasshouse.attacks.base import Claim
from glasshouse.audit.attacking.call import call_attack, declared_grants
from glasshouse.audit.attacking.claims import Unit
from glasshouse.audit.attacking.needs import attack_of, find_refusal
from glasshouse.errors import BadScenario, BadValue, GlasshouseError, Inapplicable
from glasshouse.guard.forms import without_prefix
from glasshouse.interfaces.modes import mode_of
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
from glasshouse.rng import Rng
from glasshouse.scenario.plugins import plugin_problems
from glasshouse.scenario.problems import found_problems
from glasshouse.scenario.table import Plugin
from glasshouse.settings import PLAIN, Optimizer, Training, covers
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification
from glasshouse.tensors import check_finite
from glasshouse.transcript.cut import as_change
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Kind, Refusal, Terms, Update

__all__ = ["PreparedAttack", "attack", "view"]

SERVER: Final = Threat(sees=frozenset({"broadcast", "update", "own"}))
"""The adversary for an update in memory: an honest-but-curious server."""


@final
@dataclass(frozen=True, kw_only=True)
class PreparedAttack:
    """An attack with its settings, to be called with a view."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, view: View, *, seed: int = 0, device: str = "cpu") -> tuple[Claim, ...]:
        """The attack's claims about the view, checked as in an audit, but not scored.

        Args:
            view: what the adversary sees: from :func:`view`, or extracted from a transcript.
            seed: of the attack's randomness.
            device: where it runs.

        Raises:
            Inapplicable: the attack cannot run on this view; the error names what it needs.
        """
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
        update: tensors by parameter name, or in the order of ``model.parameters()``.
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
            norm is in training mode.
        auxiliary: images (N, C, H, W) in [0, 1] and labels (N,) that the adversary has; grant ``auxiliary``.
        labels: the classes behind the update, where the adversary knows them; grant ``labels``.

    Raises:
        BadValue: the network does not accept such images, or the update does not match it or is not finite.
    """
    _check_numbers(examples, sends, batch_size, local_epochs, learning_rate)
    _check_types(optimizer=(optimizer, Optimizer), training=(training, Training | None))
    architecture, network = _network(model, inputs or input_shape, task)
    training = mode_of(model) if training is None else training
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
        tensors=_tensors(update, network, architecture.inputs.blank(1)),
        examples=examples,
        steps=terms.steps(examples),
    )
    check_finite(update_message.tensors, subject="update in memory")
    _check_grants(architecture, auxiliary, labels, examples=examples)
    grants = Grants(
        auxiliary=None if auxiliary is None else Batch(inputs=auxiliary[0], labels=auxiliary[1]),
        labels={} if labels is None else {(0, 0): torch.tensor(labels)},
    )
    received = Broadcast(round=0, architecture=architecture, tensors=state(network))
    # Attacks read changes: new parameters hold the same information, as in a view of a transcript.
    change = as_change(update_message, received)
    first_round = RoundView(round=0, broadcast=received, updates={0: change})
    return View(terms=replace(terms, sends=change.kind), threat=SERVER, rounds=(first_round,), grants=grants)


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


def _check_grants(
    architecture: Architecture,
    auxiliary: tuple[Tensor, Tensor] | None,
    labels: Any,
    *,
    examples: int,
) -> None:
    """Refuse side knowledge that cannot be about this update.

    Raises:
        BadValue: labels of another number or of no class, or auxiliary examples unlike the client's.
    """
    subject, classes = "side knowledge beside an update in memory", architecture.classes
    if labels is not None and architecture.task.one_label:
        whole = torch.as_tensor(labels).tolist() if not isinstance(labels, str) else [labels]
        known = [one for one in whole if type(one) is int and 0 <= one < classes]
        if len(whole) != examples or len(known) != examples:
            raise BadValue(
                subject,
                needs=f"labels of the {examples} examples, each from 0 to {classes - 1}",
                got=f"{whole[:8]}",
                fix="give them all, or none",
            )
    if auxiliary is None or not architecture.inputs.continuous:
        return
    inputs, (low, high) = auxiliary[0], architecture.inputs.range
    shape = tuple(architecture.input_shape)
    fits = tuple(inputs.shape[1:]) == shape and len(inputs) == len(auxiliary[1]) > 0
    # NaN is within no range.
    if not fits or not bool(((inputs >= low) & (inputs <= high)).all()):
        ends = f" from {float(inputs.min()):.3g} to {float(inputs.max()):.3g}" if inputs.numel() else ""
        got = f"{tuple(inputs.shape)}{ends}"
        raise BadValue(
            subject,
            needs=f"auxiliary examples (N, *{shape}) from {low:g} to {high:g}, and a label each",
            got=f"{got}, and {len(auxiliary[1])} labels",
            fix="resize and scale them like the client's",
        )


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
    sides: Sequence[int] = (1, 1, 1) if isinstance(inputs, Modality) else inputs
    if len(sides) != 3 or min(sides) < 1:
        raise BadValue(
            f"network '{type(model).__name__}'",
            needs="input_shape = (C, H, W) of one picture",
            got=f"input_shape = {tuple(sides)}",
            fix="leave the batch out, and say the channels: (1, 28, 28); no pictures: inputs=...",
        )
    described = inputs if isinstance(inputs, Modality) else Image(size=inputs)
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
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadValue(
            subject,
            needs=f"a forward pass on {inputs.nouns} {inputs.shape}",
            got=f"{type(error).__name__}: {str(error).splitlines()[0]}",
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


def _unreached(network: nn.Module, example: Tensor, names: Collection[str]) -> set[str]:
    """Those of the parameters on which the outputs for an example do not depend."""
    if not names:
        return set()
    parameters = {name: p for name, p in network.named_parameters() if name in names}
    with evaluated(network), torch.enable_grad():
        outputs = network(example)
    slopes: Sequence[Any] = torch.autograd.grad(outputs.sum(), list(parameters.values()), allow_unused=True)
    return {name for name, slope in zip(parameters, slopes, strict=True) if slope is None}


def _check_form(update: Any) -> None:
    """Refuse what holds no tensors.

    Raises:
        BadValue: neither a mapping nor a list.
    """
    if not isinstance(update, Mapping | Sequence) or isinstance(update, str | bytes):
        raise BadValue(
            "update in memory",
            needs="tensors by name, or a list of them",
            got=f"an object of type {type(update).__name__}",
            fix="give them by name, or in the order of model.parameters()",
        )


def _tensors(
    update: Mapping[str, Any] | Sequence[Any], network: nn.Module, example: Tensor
) -> dict[str, Tensor]:
    """The update by parameter name, with checked shapes; frozen parameters are known and do not travel."""
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    _check_form(update)
    tensors_by_name = (
        dict(update) if isinstance(update, Mapping) else dict(zip(parameters, update, strict=False))
    )
    # DataParallel and its like put a prefix before all names.
    tensors_by_name = dict(without_prefix(tensors_by_name, frozenset(parameters))[0])
    # Who takes gradients gets None of a parameter that the loss does not reach, such as an unused head.
    given = {n: t for n, t in tensors_by_name.items() if t is not None or n not in parameters}
    unused = tensors_by_name.keys() - given.keys() | _unreached(
        network, example, parameters.keys() - given.keys()
    )
    given |= {name: torch.zeros_like(parameters[name]) for name in unused}
    tensors = {name: torch.as_tensor(t).detach().cpu() for name, t in given.items()}
    wrong = [
        *(f"'{name}' is missing" for name in parameters if name not in tensors),
        *(f"'{name}' is unknown" for name in tensors if name not in parameters),
        *(
            f"'{name}' is {tuple(tensors[name].shape)}, not {tuple(p.shape)}"
            for name, p in parameters.items()
            if name in tensors and tensors[name].shape != p.shape
        ),
    ]
    if wrong or len(tensors_by_name) != len(update):
        raise BadValue(
            "update in memory",
            needs=f"one tensor for each of the network's {len(parameters)} parameters",
            got="; ".join(wrong[:3]) or f"{len(update)} tensors",
            fix="give them by name, or in the order of model.parameters()",
        )
    if odd := [name for name, t in tensors.items() if t.is_complex()]:
        raise BadValue(
            "update in memory",
            needs="real numbers",
            got=f"'{odd[0]}' of {tensors[odd[0]].dtype}",
            fix="give the parts of a complex parameter as two real ones, in the network, too",
        )
    return tensors
