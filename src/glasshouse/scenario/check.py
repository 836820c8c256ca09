"""Collect all problems of a raw scenario and of each of its cells."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from glasshouse.errors import Problem
from glasshouse.outside.schema import freeze
from glasshouse.scenario.axes import expand_axes
from glasshouse.scenario.overrides import PathError
from glasshouse.scenario.plugins import plugin_problems, used_plugins
from glasshouse.scenario.problems import found_problems
from glasshouse.scenario.rules import rule_problems
from glasshouse.scenario.spec import Scenario
from glasshouse.wire import Value

Inspect = Callable[[Scenario], list[Problem]]
"""Finds further problems, for example with the data, of a cell whose names and arguments are valid."""


def check_raw(
    raw: dict[str, Any], *, inspect: Inspect | None = None
) -> tuple[Scenario | None, list[Problem]]:
    """The validated scenario; or None and all problems of the scenario and its cells."""
    try:
        scenario = Scenario.model_validate(freeze(raw))
    except ValidationError as error:
        problems = found_problems(error, Scenario)
        return None, problems + [p for p in _names_only(raw, error) if p not in problems]
    problems = _all_cells(raw, rules=True, inspect=inspect)
    return (None if problems else scenario), problems


def _names_only(raw: dict[str, Any], error: ValidationError) -> list[Problem]:
    """Plug-in problems without the invalid keys. Cross-key rules are skipped: they would judge defaults."""
    rest = copy.deepcopy(raw)
    for detail in sorted(error.errors(), key=lambda d: str(d["loc"]), reverse=True):
        _drop(rest, detail["loc"])
    try:
        Scenario.model_validate(freeze({"name": "unnamed", **rest}))
    except ValidationError:
        return []
    return _all_cells({"name": "unnamed", **rest}, rules=False)


def _drop(node: Any, loc: tuple[str | int, ...]) -> None:
    for part in loc[:-1]:
        children = dict(enumerate(node)) if isinstance(node, list) else node if isinstance(node, dict) else {}
        if part not in children:
            return
        node = children[part]
    if isinstance(node, dict):
        node.pop(loc[-1], None)


def _all_cells(raw: dict[str, Any], *, rules: bool, inspect: Inspect | None = None) -> list[Problem]:
    """Problems of all cells without duplicates, each with the axis values that its cells share."""
    cells_by_problem: dict[Problem, list[dict[str, Value]]] = {}
    memo: dict[str, list[Problem]] = {}
    total = 0
    try:
        for labels, one in expand_axes(raw):
            total += 1
            for problem in _cell_problems(one, memo, rules=rules, inspect=inspect):
                cells_by_problem.setdefault(problem, []).append(labels)
    except PathError as error:
        return [error.problem]
    return [
        p if len(where) == total else _locate_problem(p, where, total)
        for p, where in cells_by_problem.items()
    ]


def _locate_problem(problem: Problem, where: list[dict[str, Value]], total: int) -> Problem:
    shared = [f"{k} = {v}" for k, v in where[0].items() if all(labels[k] == v for labels in where)]
    cells = f"in {len(where)} of {total} cells" + (f": {', '.join(shared)}" if shared else "")
    return replace(problem, got=f"{problem.got} ({cells})")


def _cell_problems(
    raw: dict[str, Any], memo: dict[str, list[Problem]], *, rules: bool, inspect: Inspect | None
) -> list[Problem]:
    try:
        cell = Scenario.model_validate(freeze(raw))
    except ValidationError as error:
        return found_problems(error, Scenario)
    problems = []
    for group, path, plugin in used_plugins(cell):
        key = json.dumps([group, path, plugin.model_dump()], sort_keys=True, default=str)
        if key not in memo:
            memo[key] = plugin_problems(group, path, plugin)
        problems += memo[key]
    further = [] if problems or inspect is None else inspect(cell)
    return problems + (rule_problems(cell) if rules else []) + further
