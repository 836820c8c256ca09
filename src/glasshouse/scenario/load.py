"""Load a preset or a file as a validated :class:`Suite`; all problems are reported in one error."""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from glasshouse.disk import write_text
from glasshouse.errors import BadFile, BadScenario, Problem, UnknownName
from glasshouse.outside import limits
from glasshouse.outside.schema import freeze
from glasshouse.registry import nearest_names
from glasshouse.scenario.check import Inspect, check_raw
from glasshouse.scenario.defaults import Choose, fill_attacks, fill_metrics
from glasshouse.scenario.overrides import PathError, assign, join_path, parse_path, split_assignment
from glasshouse.scenario.problems import found_problems, unmet
from glasshouse.scenario.shipped import preset_text
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.suite import Entry, Member, Suite, SuiteFile
from glasshouse.scenario.table import canonical
from glasshouse.scenario.write import resolved_toml, toml
from glasshouse.store import read_text

BYTE_ORDER_MARK = "\ufeff"  # written by some Windows editors; not allowed in TOML
_Raw = tuple[str, dict[str, Any]]  # path prefix for problems in a suite, and a scenario before validation


def load(
    name: str,
    sets: Sequence[str] = (),
    *,
    inspect: Inspect | None = None,
    captured: Mapping[str, Any] = MappingProxyType({}),
    choose: Choose | None = None,
) -> Suite:
    """Load and validate the preset or TOML file ``name``, after applying the assignments ``sets``.

    A single scenario is a suite of one. In a suite, an assignment changes every scenario in which its path
    exists; ``scenarios.NAME.path=value`` changes one. ``inspect`` finds further problems of each cell.
    ``captured``: tables given by a capture instead of by the file. ``choose``: chooses the attacks of a
    scenario without any; None: such a scenario is refused.

    Raises:
        UnknownName: no preset of that name.
        BadFile: missing, unreadable or not TOML.
        BadScenario: all other problems, in one error.
    """
    text = _read(name, Path())
    return _check(
        _parse(text, name), sets, name=name, given=text, inspect=inspect, captured=captured, choose=choose
    )


def load_table(
    raw: Mapping[str, Any],
    sets: Sequence[str] = (),
    *,
    inspect: Inspect | None = None,
    captured: Mapping[str, Any] = MappingProxyType({}),
    choose: Choose | None = None,
) -> Suite:
    """Like :func:`load`, but from plain data: the tables of a scenario or suite as in a TOML file.

    Raises:
        UnknownName: a suite uses a preset that does not exist.
        BadFile: a file that a suite uses cannot be read.
        BadScenario: all other problems, in one error.
    """
    table = canonical(raw)
    name = str(table.get("name", "without a name"))
    return _check(
        table, sets, name=name, given=toml(table), inspect=inspect, captured=captured, choose=choose
    )


def _check(
    raw: dict[str, Any],
    sets: Sequence[str],
    *,
    name: str,
    given: str,
    inspect: Inspect | None,
    captured: Mapping[str, Any],
    choose: Choose | None,
) -> Suite:
    is_suite = "scenarios" in raw
    entries, raws, problems = _suite(raw, name) if is_suite else ([Entry(use=name)], [("", raw)], [])
    # Values come in this order: the file's, those of the capture, those of --set; all problems are told at
    # once.
    problems += [p for where, one in raws for p in _fill(one, captured, where)]
    problems += _set_all(raws, entries, sets)
    if captured:
        problems += _of_the_capture(raws, sets, captured)
    files = [one.use for one in entries]
    if not captured:
        problems += [
            p for (where, one), file in zip(raws, files, strict=True) for p in _alone(one, file, where)
        ]
    members = []
    # Attacks are chosen before metrics are: which metrics apply follows from the claims.
    for (prefix, one), entry in zip(raws, entries, strict=True):
        if choose is not None:
            problems += [replace(p, path=prefix + p.path) for p in fill_attacks(one, choose)]
        fill_metrics(one)
        scenario, faults = check_raw(one, inspect=inspect)
        problems += [replace(p, path=prefix + p.path) for p in faults]
        if scenario is not None:
            members.append(Member(scenario=scenario, system=entry.system))
    problems += _twins(members)
    if problems:
        raise BadScenario(f"scenario '{name}'", problems)
    suite_name = str(raw["name"]) if is_suite else members[0].scenario.name
    return Suite(name=suite_name, summary=str(raw.get("summary", "")), members=tuple(members), given=given)


def from_dict(
    raw: Mapping[str, Any], *, subject: str = "a scenario", choose: Choose | None = None
) -> Scenario:
    """A scenario from plain data, the tables of a TOML file as dictionaries; validated like a file.

    ``choose``: chooses the attacks where none are named; None: such a scenario is refused.

    Raises:
        BadScenario: lists every problem.

    Examples:
        >>> from_dict({"name": "mine", "attacks": ["idlg"]}).data.source
        'digits'
    """
    filled = canonical(raw)
    problems = [] if choose is None else fill_attacks(filled, choose)
    fill_metrics(filled)
    scenario, faults = check_raw(filled)
    problems += faults
    if scenario is None or problems:
        raise BadScenario(subject, problems)
    return scenario


def write_resolved(scenario: Scenario, path: Path) -> None:
    """Write ``scenario`` as TOML with every default; folders are created as needed.

    Raises:
        DiskFull: not enough disk space.
        BadFile: the path cannot be written.
    """
    write_text(path, resolved_toml(scenario))


def read_resolved(path: Path) -> Scenario:
    """Read a file from :func:`write_resolved`; plug-in names were checked then and are not looked up again.

    Raises:
        BadFile: missing or not TOML.
        BadScenario: its keys do not match this version.
    """
    raw = _parse(_read(str(path), Path()), str(path))
    try:
        return Scenario.model_validate(freeze(raw))
    except ValidationError as error:
        raise BadScenario(f"scenario '{path}'", found_problems(error, Scenario)) from error


def _suite(raw: dict[str, Any], name: str) -> tuple[list[Entry], list[_Raw], list[Problem]]:
    try:
        suite = SuiteFile.model_validate(freeze(raw))
    except ValidationError as error:
        raise BadScenario(f"suite '{name}'", found_problems(error, SuiteFile)) from error
    entries, raws, problems = [], [], []
    # Files are named relative to the suite's own place; one that cannot be read leaves the others to be
    # checked.
    folder = Path(name).parent if name.endswith(".toml") else Path()
    for i, entry in enumerate(suite.scenarios):
        path = f"scenarios[{i}]"
        try:
            one = _parse(_read(entry.use, folder), entry.use)
        except (UnknownName, BadFile) as error:
            problems.append(unmet(f"{path}.use", error.needs, got=error.got, hint=error.fix))
            continue
        if "scenarios" in one:
            problems.append(unmet(f"{path}.use", "a scenario", got=f"'{entry.use}', itself a suite"))
            continue
        for key, value in entry.set.items():
            try:
                assign(one, key, canonical(value))
            except PathError as error:
                problems.append(replace(error.problem, path=f"{path}.set.{error.problem.path}"))
        entries.append(entry)
        raws.append((f"{path} ({entry.use}) ", one))
    return entries, raws, problems


def _fill(raw: dict[str, Any], captured: Mapping[str, Any], where: str) -> list[Problem]:
    """Fill the tables given by a capture into a scenario, which must not define them itself."""
    needs, hint = "nothing: --captured says what federation ran", "take it out of the file"
    problems = []
    for name, value in captured.items():
        if name in raw and name != "data":
            problems.append(unmet(where + name, needs, got="a table", hint=hint))
        else:
            raw[name] = {**raw.get(name, {}), **value} if isinstance(value, dict) else value
    return problems


def _of_the_capture(raws: list[_Raw], sets: Sequence[str], captured: Mapping[str, Any]) -> list[Problem]:
    """Assignments and axes that would contradict what a capture says of its federation and its model."""
    needs, hint = "nothing: the capture says it", f"glasshouse terms {captured['captured']} --set key=value"
    paths = {text.partition("=")[0].strip(): text.partition("=")[0].strip() for text in sets}
    for _, raw in raws:
        zipped = raw.get("axes_zipped", [])
        tables = [raw.get("axes", {}), *(zipped if isinstance(zipped, list) else [])]
        paths |= {f'axes."{path}"': str(path) for one in tables if isinstance(one, dict) for path in one}
    own = [name for name in captured if name != "data"]
    return [
        unmet(text, needs, got="another value", hint=hint)
        for text, path in paths.items()
        if path.partition(".")[0] in own
    ]


def _alone(raw: Mapping[str, Any], file: str, where: str) -> list[Problem]:
    """Report a file that says nothing of a federation: meant for a capture, it would play the default one."""
    paths = [str(path) for path in raw.get("axes", {})] if isinstance(raw.get("axes"), dict) else []
    if raw.get("captured"):
        hint = f"--captured {raw['captured']}"
        return [unmet(where + "captured", "nothing: an option gives it", got=str(raw["captured"]), hint=hint)]
    stated = {"federation", "model"} & raw.keys() or any(p.startswith(("federation", "model")) for p in paths)
    if not file.endswith(".toml") or stated:
        return []
    hint = "an empty [federation] plays the default one: one client, one step on one example"
    needs = "a table [federation], or --captured FOLDER: this file describes no federation"
    return [unmet(where + "federation", needs, got="neither", hint=hint)]


def _set_all(raws: list[_Raw], entries: list[Entry], sets: Sequence[str]) -> list[Problem]:
    problems = []
    for text in sets:
        try:
            path, value = split_assignment(text)
            parts = parse_path(path)
        except PathError as error:
            problems.append(error.problem)
            continue
        # A plain path is set in every scenario of a suite, scenarios.NAME.path in some.
        targets = [raw for _, raw in raws]
        if parts[0] == "scenarios" and len(parts) > 2:
            targets = [
                raw
                for i, ((_, raw), entry) in enumerate(zip(raws, entries, strict=True))
                if parts[1] in ("*", str(i), entry.use, raw.get("name"))
            ]
            path = join_path(parts[2:])
            if not targets:
                hint = nearest_names(parts[1], tuple(str(raw.get("name")) for _, raw in raws))
                problems.append(unmet(text, "a scenario of the suite", got=f"'{parts[1]}'", hint=hint))
        failed = []
        for raw in targets:
            try:
                assign(raw, path, value)
            except PathError as error:
                failed.append(error.problem)
        # A key may exist in some scenarios only: it is wrong if it fits nowhere.
        if targets and len(failed) == len(targets):
            problems += failed[:1]
    return problems


def _twins(members: list[Member]) -> list[Problem]:
    return [
        unmet("scenarios", "different names", got=f"'{name}' {count} times", hint="set name")
        for name, count in sorted(Counter(m.scenario.name for m in members).items())
        if count > 1
    ]


def _read(name: str, folder: Path) -> str:
    if not name.endswith(".toml"):
        return preset_text(name)
    return read_text(folder / name, most=limits.TOML_BYTES).removeprefix(BYTE_ORDER_MARK)


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadFile(
            f"scenario '{name}'",
            needs="valid TOML",
            got=str(error),
            fix="look at that line: texts need quotes, lists commas, a key may appear once",
        ) from error
