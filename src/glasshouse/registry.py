"""Plug-in registry (name → factory) on entry points, for built-in and third-party plug-ins alike.

A plug-in is a class whose ``card`` describes it. ``glasshouse list`` prints cards, the scenario
parser checks names and arguments against them, and a missing optional dependency affects only the
plug-in that needs it. See docs/decisions/0001.
"""

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path, PureWindowsPath
from typing import Any, Final, TypeVar, final

from glasshouse.errors import BadFile, BadValue, BrokenPlugin, GlasshouseError, NotInstalled, UnknownName

__all__ = [
    "FROM_DATA",
    "GROUPS",
    "Card",
    "D",
    "Offer",
    "arguments",
    "card",
    "create",
    "entry",
    "flat_settings",
    "import_factory",
    "load",
    "load_model",
    "names",
    "nearest_names",
    "own_modules",
    "require_declaration",
    "table_of",
    "takes",
]

FROM_DATA = frozenset({"inputs", "task", "vocabulary"})  # arguments of a factory that the data give
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
    "executors",
    "modalities",
    "tasks",
    "formats",
    "gates",
    "declarations",
)
F = TypeVar("F", bound=Callable[..., Any])
D = TypeVar("D")


@final
@dataclass(frozen=True, kw_only=True)
class Offer:
    """Settings at which ``attacks = "auto"`` may choose an attack, and what was measured of them.

    Attributes:
        strength: share, from 0 to 1, of what guessing leaves that the attack got (docs/results/auto.md).
        settings: arguments of the attack; those left out have their defaults.
        seconds: of one core for one call, beyond what counting its budget shows.
        fills: argument → path of a list in the scenario, of whose first entry it takes the name; where the
            list is empty, the effort is not offered.
        variant: in words, of settings that lead by other metrics: they stand beside the rest, not instead.
    """

    strength: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    fills: Mapping[str, str] = field(default_factory=dict)
    variant: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Card:
    """What ``glasshouse list`` says of a plug-in: an attribute of its class, or a decorator of its function.

    Attributes:
        summary: one line.
        title: for headings and sentences ("Inverting Gradients"); empty: the registered name.
        source: paper or origin, short: ``"Zhu et al. 2019, arXiv:1906.08935"``; empty for our own.
        threat: who can run it, in words; empty where it does not apply.
        claims: of an attack: kinds of claims that it makes and that metrics can score; empty: not declared.
        grants: side knowledge that it needs, by name.
        extra: the optional dependency group that it needs; empty for none.
        details: further facts to show, e.g. ``{"chance": "1/M", "direction": "up is worse"}``.
        control: of an attack: the easy setting in which it must succeed. ``setting`` describes it in words;
            ``scenario`` overrides the built-in control scenario, ``metric`` (default psnr) judges. The attack
            runs there with the audited settings; ``fits`` (path → value) replaces only those that have no
            meaning with the easy data, never the attack's effort. Empty: the attack has no control.
        offers: of an attack: settings at which ``attacks = "auto"`` may choose it; empty: only by name.

    Examples:
        >>> @Card(summary="nothing at all")
        ... def nothing() -> None: ...
        >>> nothing.card.summary
        'nothing at all'
    """

    summary: str
    title: str = ""
    source: str = ""
    threat: str = ""
    claims: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    extra: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    control: Mapping[str, Any] = field(default_factory=dict)
    offers: tuple[Offer, ...] = ()

    @property
    def control_metric(self) -> str:
        """Name of the metric that judges the control."""
        return str(self.control.get("metric", "psnr"))

    def __call__(self, factory: F) -> F:
        """Attach the card to a factory that is a function."""
        factory.__dict__["card"] = self
        return factory


@functools.cache
def _installed() -> dict[str, dict[str, tuple[EntryPoint, ...]]]:
    """Entry points of all installed packages by group and name; several where packages use the same name."""
    points = entry_points()
    installed: dict[str, dict[str, tuple[EntryPoint, ...]]] = {}
    for group in GROUPS:
        by_name = installed[group] = {}
        # A package that is found twice on the path is the same plug-in; the same name elsewhere is another.
        once = {(point.name, point.value): point for point in points.select(group=f"glasshouse.{group}")}
        for point in once.values():
            by_name[point.name] = (*by_name.get(point.name, ()), point)
    return installed


def look_again() -> None:
    """Forget which packages are installed; the next question looks for them."""
    _installed.cache_clear()


def _entries(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points of ``group`` by name."""
    if group not in GROUPS:
        needs, fix = f"one of {', '.join(GROUPS)}", nearest_names(group, GROUPS)
        raise UnknownName(f"registry '{group}'", needs=needs, got=group, fix=fix)
    return _installed()[group]


def names(group: str) -> tuple[str, ...]:
    """Every registered name of ``group``, sorted."""
    return tuple(sorted(_entries(group)))


def own_modules(*groups: str) -> tuple[str, ...]:
    """Names of our own modules that plug-ins of the groups stand in, sorted; nothing is imported."""
    points = (e for g in groups for alike in _entries(g).values() for e in alike)
    return tuple(sorted({e.module for e in points if e.module.startswith(f"{__package__}.")}))


def entry(group: str, name: str) -> EntryPoint:
    """The entry point registered as ``name``; nothing is imported.

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
            fix=nearest_names(name, entries) + f"; 'glasshouse list {group}' shows all",
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
        # An editable install is a finder that a sealed process lacks; a folder of its name hides it.
        missing = isinstance(error, ModuleNotFoundError | AttributeError)
        again = "install it without -e (pip install .), or " if missing else ""
        raise BrokenPlugin(
            f"plug-in '{name}' of {group}",
            needs=f"package '{package}' to be importable",
            got=f"{type(error).__name__}: {error}",
            fix=f"{again}repair or uninstall '{package}'; everything else works without it",
        ) from error
    return factory


def import_factory(name: str, subject: str) -> Callable[..., Any]:
    """Import a user's own factory, named ``module:factory``.

    Raises:
        BadFile: its module cannot be imported.
        BadValue: the name has another form, or the module has no such function.
    """
    module, _, attribute = name.rpartition(":")
    if "/" in module or "\\" in module or module.endswith(".py"):
        path = PureWindowsPath(module)  # reads both kinds of slash
        fix = f"write {path.stem}:{attribute}, and run from '{path.parent}'"
        raise BadFile(subject, needs="a module's name before the colon", got=f"the path '{module}'", fix=fix)
    folder = str(Path.cwd())
    if folder not in sys.path:  # a console script has no entry for the working directory
        sys.path.append(folder)
    try:
        result = getattr(importlib.import_module(module), attribute or "?", None)
    except NotInstalled:
        raise
    except (ImportError, ValueError) as error:  # ValueError: nothing before the colon
        raise BadFile(
            subject,
            needs=f"a Python module '{module}' that can be imported from here",
            got=str(error),
            fix="run from the folder that holds it, or install its package",
        ) from error
    if not callable(result):
        raise BadValue(
            subject,
            needs=f"a function or class '{attribute}' in '{module}'",
            got="no such name" if result is None else f"a {type(result).__name__}",
            fix="write it as module:factory",
        )
    factory: Callable[..., Any] = result
    return factory


def load_model(name: str) -> Callable[..., Any]:
    """The factory of a model: registered, or the user's own as ``module:factory``."""
    return import_factory(name, f"model '{name}'") if ":" in name else load("models", name)


def card(group: str, name: str) -> Card:
    """The card of a plug-in (its ``card`` attribute)."""
    return require_declaration(group, name, "card", Card)


def require_declaration(group: str, name: str, attribute: str, kind: type[D]) -> D:
    """What the class of a plug-in declares as ``attribute``, which the contract of ``group`` requires.

    Raises:
        UnknownName: no such plug-in.
        BadValue: the attribute is missing or of another type.
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
    every = inspect.signature(factory).parameters.items()
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: p for name, p in every if p.kind in kinds and name not in FROM_DATA}


def create(factory: Callable[..., Any], settings: Mapping[str, Any], default: Any = None) -> Any:
    """Call ``factory`` with ``settings``, in which a table stands for an argument that is a dataclass.

    Keys missing from the table take their values from the argument's default.

    Args:
        factory: of a plug-in.
        settings: by argument.
        default: replaces these ``settings`` in a copy of it, instead of a call; None: none.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Training:
        ...     steps: int = 100
        >>> @dataclass(frozen=True)
        ... class Attack:
        ...     training: Training = field(default_factory=Training)
        >>> create(Attack, {"training": {"steps": 5}})
        Attack(training=Training(steps=5))
    """
    values = dict(settings)
    for name, parameter in arguments(factory).items():
        table, value = table_of(parameter), settings.get(name)
        if table is not None and isinstance(value, Mapping):
            inner = _default(factory, parameter) if default is None else getattr(default, name)
            values[name] = create(table, value, inner if isinstance(inner, table) else None)
    return factory(**values) if default is None else replace(default, **values)


def flat_settings(
    factory: Callable[..., Any], settings: Mapping[str, Any], default: Any = None
) -> dict[str, Any]:
    """Every argument of ``factory`` with its value under ``settings``; keys of a table by their dotted path.

    Values missing from ``settings`` are those of ``default``, or of the factory where that is None.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Training:
        ...     steps: int = 100
        >>> @dataclass(frozen=True)
        ... class Attack:
        ...     restarts: int = 1
        ...     training: Training = field(default_factory=Training)
        >>> flat_settings(Attack, {"restarts": 2})
        {'restarts': 2, 'training.steps': 100}
    """
    flat: dict[str, Any] = {}
    for name, parameter in arguments(factory).items():
        inner = _default(factory, parameter) if default is None else getattr(default, name)
        value, table = settings.get(name, inner), table_of(parameter)
        if table is None:
            flat[name] = value
        else:
            base, inside = inner if isinstance(inner, table) else None, value if value is not inner else {}
            flat |= {f"{name}.{key}": v for key, v in flat_settings(table, inside, base).items()}
    return flat | {name: value for name, value in settings.items() if name not in arguments(factory)}


def takes(factory: Callable[..., Any], path: Sequence[str]) -> bool:
    """Whether ``factory`` has the argument at this path of keys: ``["training", "steps"]``."""
    parameter = arguments(factory).get(path[0])
    table = None if parameter is None else table_of(parameter)
    return parameter is not None and (len(path) == 1 or table is None or takes(table, path[1:]))


def _default(factory: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The default of an argument."""
    for one in fields(factory) if is_dataclass(factory) else ():
        if one.name == parameter.name and one.default_factory is not MISSING:
            return one.default_factory()
    return parameter.default


def table_of(parameter: inspect.Parameter) -> type | None:
    """The dataclass type of an argument, which a scenario writes as a table; None: not a dataclass."""
    kind = parameter.annotation
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


READABLE: Final = 100
"""Names that a hint lists, at most."""


def nearest_names(name: str, valid: Mapping[str, object] | tuple[str, ...]) -> str:
    """A hint with the closest valid names.

    Examples:
        >>> nearest_names("clip-noise", ("clip_noise", "prune"))
        'did you mean clip_noise?'
        >>> nearest_names("SCAFFOLD", ("fedavg", "scaffold"))
        'did you mean scaffold?'
    """
    spelt = name.replace("-", "_")
    every = list(dict.fromkeys(valid))
    close = [one for one in every if one.casefold() == spelt.casefold()]
    close = close or difflib.get_close_matches(spelt, every, n=3, cutoff=0.5)
    if close:
        return f"did you mean {', '.join(close)}?"
    known = sorted(dict.fromkeys(valid))
    if len(known) > READABLE:
        return "glasshouse list shows what there is"
    return f"known: {', '.join(known) or 'none'}"
