"""Name → factory, by entry points: built-ins and third parties are registered the same way.

A plug-in is a class whose ``card`` says what it is. ``glasshouse list`` prints cards, the scenario
parser checks names and arguments against them, and an extra that is not installed only hurts the
plug-in that needs it. See docs/decisions/0001.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, final

from glasshouse.errors import BadValue, BrokenPlugin, GlasshouseError, UnknownName

GROUPS = (
    "attacks",
    "defenses",
    "metrics",
    "datasets",
    "partitioners",
    "transforms",
    "models",
    "protocols",
    "behaviours",
    "properties",
    "claims",
    "figures",
)


@final
@dataclass(frozen=True, kw_only=True)
class Card:
    """What ``glasshouse list`` says of a plug-in.

    Attributes:
        summary: one line.
        title: for headings and sentences ("Inverting Gradients"); empty: the registered name.
        source: paper or origin, short: ``"Zhu et al. 2019, arXiv:1906.08935"``; empty for our own.
        threat: who can run it, in words; empty where it does not apply.
        grants: side knowledge that it needs, by name.
        extra: the optional dependency group that it needs; empty for none.
        details: further facts to show, e.g. ``{"chance": "1/M", "direction": "up is worse"}``.
        control: of an attack: the easy setting in which it must succeed. ``setting`` says it in words;
            ``scenario`` overrides the built-in control scenario, ``metric`` (default psnr) judges. The attack
            runs there with the audited settings; ``fits`` replaces only those that have no meaning with the
            easy data, never the attack's effort. Empty: the attack has no control.
        renamed: arguments of earlier versions, old path → new one: ``training_steps`` → ``training.steps``. A
            scenario that uses an old one is told the new one.
    """

    summary: str
    title: str = ""
    source: str = ""
    threat: str = ""
    grants: tuple[str, ...] = ()
    extra: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    control: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def control_metric(self) -> str:
        """Name of the metric that judges the control."""
        return str(self.control.get("metric", "psnr"))


F = TypeVar("F", bound=Callable[..., Any])


def carded(card: Card) -> Callable[[F], F]:
    """Gives a factory that is a function its ``card``.

    Example:
        >>> @carded(Card(summary="nothing at all"))
        ... def nothing() -> None: ...
        >>> nothing.card.summary
        'nothing at all'
    """

    def attach(factory: F) -> F:
        factory.__dict__["card"] = card
        return factory

    return attach


@functools.cache
def _entries(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points of ``group`` by name; more than one where packages disagree about a name."""
    if group not in GROUPS:
        raise UnknownName(
            f"registry '{group}'", needs=f"one of {', '.join(GROUPS)}", got=group, fix=nearest(group, GROUPS)
        )
    entries: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=f"glasshouse.{group}"):
        entries.setdefault(entry.name, {})[entry.value] = entry
    return {name: tuple(by_value.values()) for name, by_value in entries.items()}


def names(group: str) -> tuple[str, ...]:
    """Every registered name of ``group``, sorted."""
    return tuple(sorted(_entries(group)))


def entry(group: str, name: str) -> EntryPoint:
    """Where the factory registered as ``name`` is; nothing is imported.

    Raises:
        UnknownName: no such plug-in; the nearest names are listed.
        BrokenPlugin: two packages register the name.
    """
    entries = _entries(group)
    if name not in entries:
        raise UnknownName(
            f"{group.removesuffix('s')} '{name}'",
            needs=f"a registered name of {group}",
            got=f"'{name}'",
            fix=nearest(name, entries) + f"; 'glasshouse list {group}' shows all",
        )
    if len(entries[name]) > 1:
        raise BrokenPlugin(
            f"plug-in '{name}' of {group}",
            needs="one package per name",
            got=" and ".join(sorted(entry.value for entry in entries[name])),
            fix="uninstall one of them, or rename it",
        )
    return entries[name][0]


def load(group: str, name: str) -> Callable[..., Any]:
    """The factory registered as ``name``.

    Raises:
        UnknownName: no such plug-in; the nearest names are listed.
        NotInstalled: raised by the plug-in's module when its extra is missing.
        BrokenPlugin: its module cannot be imported, or two packages register the name.
    """
    point = entry(group, name)
    try:
        factory: Callable[..., Any] = point.load()
    except GlasshouseError:
        raise
    except Exception as error:
        package = point.dist.name if point.dist else point.module
        raise BrokenPlugin(
            f"plug-in '{name}' of {group}",
            needs=f"package '{package}' to be importable",
            got=f"{type(error).__name__}: {error}",
            fix=f"repair or uninstall '{package}'; everything else works without it",
        ) from error
    return factory


def card(group: str, name: str) -> Card:
    """The card of a plug-in (its ``card`` attribute)."""
    return declared(group, name, "card", Card)


D = TypeVar("D")


def declared(group: str, name: str, attribute: str, kind: type[D]) -> D:
    """What the class of a plug-in declares under ``attribute``; a contract of ``group`` asks for it.

    Raises:
        UnknownName: no such plug-in. BadValue: it declares nothing there, or something of another type.
    """
    value = getattr(load(group, name), attribute, None)
    if not isinstance(value, kind):
        raise BadValue(
            f"plug-in '{name}' of {group}",
            needs=f"an attribute '{attribute}' of type {kind.__module__}.{kind.__name__}",
            got=repr(value),
            fix="add one: docs/plugins.md shows how",
        )
    return value


def arguments(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword arguments that ``factory`` takes from a scenario, by name."""
    return {
        name: p
        for name, p in inspect.signature(factory).parameters.items()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    }


def create(factory: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """What ``factory`` makes of ``settings``, in which a table stands for an argument that is a dataclass.

    Example:
        >>> @dataclass(frozen=True)
        ... class Training:
        ...     steps: int = 100
        >>> @dataclass(frozen=True)
        ... class Attack:
        ...     training: Training = Training()
        >>> create(Attack, {"training": {"steps": 5}})
        Attack(training=Training(steps=5))
    """
    tables = {name: table_of(parameter) for name, parameter in arguments(factory).items()}
    given = dict(settings)
    for name, value in settings.items():
        table = tables.get(name)
        if table is not None and isinstance(value, Mapping):
            given[name] = create(table, value)
    return factory(**given)


def table_of(parameter: inspect.Parameter) -> Callable[..., Any] | None:
    """The dataclass that an argument is, which a scenario writes as a table; None: it is something else."""
    kind = parameter.annotation
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def nearest(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """A hint with the closest valid names.

    Example:
        >>> nearest("clip-noise", ("clip_noise", "prune"))
        'did you mean clip_noise?'
    """
    close = difflib.get_close_matches(name.replace("-", "_"), list(known), n=3, cutoff=0.5)
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"known: {', '.join(sorted(known)) or 'none'}"
