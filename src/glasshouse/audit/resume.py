"""Prepare a run's folder: create it, or compare the settings and the user's code of the run to resume."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from glasshouse.audit.plan import Plan
from glasshouse.audit.provenance.hashes import verify_hashes
from glasshouse.audit.provenance.sources import package_digest
from glasshouse.disk import write_text
from glasshouse.errors import BadFile
from glasshouse.models.memory import PREFIX
from glasshouse.registry import load_model
from glasshouse.scenario.axes import cells, plain
from glasshouse.scenario.load import read_resolved, write_resolved
from glasshouse.scenario.suite import Suite
from glasshouse.store import read_json, write_json

_GIVEN: Final = "scenario.given.toml"
_CODE: Final = "code.json"
_SHOWN: Final = 3  # number of settings that an error names; the rest are counted


def prepare_folder(suite: Suite, plans: tuple[Plan, ...], out: Path, *, resume: bool) -> None:
    """Write the suite and its settings to ``out``, or check that the run in ``out`` has the same.

    Raises:
        BadFile: ``out`` contains a run and ``resume`` is not set, or a run of another suite, of other
            settings or of other code.
    """
    if (out / _GIVEN).exists():
        _check_same(suite, out, resume=resume)
        verify_hashes(out)
    record_code(suite, out)
    write_text(out / _GIVEN, suite.given)
    for member in suite.members:
        write_resolved(member.scenario, out / _resolved_name(suite, member.scenario.name))
    write_scenarios(plans)


def write_scenarios(plans: Iterable[Plan]) -> None:
    """Write the scenario of every cell into the folders of its groups."""
    for planned in plans:
        for group in planned.groups:
            if not (Path(group.folder) / "scenario.toml").exists():
                write_resolved(planned.cell.scenario, Path(group.folder) / "scenario.toml")


def _resolved_name(suite: Suite, scenario: str) -> str:
    return "scenario.toml" if len(suite.members) == 1 else f"scenarios/{scenario}.toml"


def _check_same(suite: Suite, out: Path, *, resume: bool) -> None:
    subject = f"run directory '{out}'"
    same = (out / _GIVEN).read_text(encoding="utf-8") == suite.given
    if not (resume and same):
        raise BadFile(
            subject,
            needs="an empty or new folder" if not resume else "the run of this very scenario",
            got="a run" if not resume else "a run of another scenario",
            fix="choose another --out, or --resume the scenario that was started there",
        )
    changes: list[str] = []
    for member in suite.members:
        path = out / _resolved_name(suite, member.scenario.name)
        if path.is_file():  # a run killed before it wrote this file has no pieces yet
            changes += _changes(plain(read_resolved(path)), plain(member.scenario))
    if changes:
        more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        raise BadFile(
            subject,
            needs="the settings that the run began with",
            got=", ".join(changes[:_SHOWN]) + more,
            fix="give the same --set values to go on with this run, or choose another --out",
        )


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings that differ, as ``federation.rounds = 2 (it began with 1)``."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    return [
        f"{path} = {new.get(path, 'not set')} (it began with {old.get(path, 'not set')})"
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a table, by its path; lists of tables are indexed by position."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{path}[{position}]")
    else:
        yield path, value


def own_models(suite: Suite) -> set[str]:
    """Names of the suite's models that are the user's own: ``module:factory``, or in memory."""
    scenarios = [cell.scenario for scenario in suite.scenarios for cell in cells(scenario)]
    models = [m for s in scenarios for m in (s.model, *s.federation.client_models)]
    return {model.name for model in models if ":" in model.name}


def lives_in_memory(suite: Suite) -> bool:
    """Whether a model of the suite was passed as an object, which only this process has."""
    return any(name.startswith(PREFIX) for name in own_models(suite))


def record_code(suite: Suite, out: Path) -> None:
    """Write ``code.json`` with a hash of the package of each ``module:factory``, or compare an existing one.

    The hash covers all source files of the module's package, or the file of a module outside any package,
    but nothing imported from elsewhere. The name of a network in memory contains its hash.

    Raises:
        BadFile: a package has changed since the run started.
    """
    packages = set()
    for name in own_models(suite):
        if not name.startswith(PREFIX):
            load_model(name)
            packages.add(name.partition(":")[0].partition(".")[0])
    now = {package: package_digest(package) for package in sorted(packages)}
    path = out / _CODE
    before = read_json(path) if path.is_file() else now
    if before != now:
        changed = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
        raise BadFile(
            f"run directory '{out}'",
            needs="the code that the run began with",
            got=f"source files of {', '.join(changed)} that were changed since",
            fix="undo the change to go on with this run, or choose another --out",
        )
    if now:
        write_json(path, now)
