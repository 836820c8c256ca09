"""Everything wrong with a raw scenario and with each of its cells."""

import copy
import json
from typing import Any

from pydantic import ValidationError

from glasshouse.errors import Problem
from glasshouse.scenario.axes import expanded, in_cell
from glasshouse.scenario.overrides import PathError, parse_path
from glasshouse.scenario.plugins import plugin_problems, used
from glasshouse.scenario.problems import found_problems
from glasshouse.scenario.rules import rule_problems
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import canonical, frozen


def checked(raw: dict[str, Any]) -> tuple[Scenario | None, list[Problem]]:
    """The validated scenario, or None and everything wrong with it or with any of its cells."""
    try:
        scenario = Scenario.model_validate(frozen(raw))
    except ValidationError as error:
        problems = found_problems(error, Scenario)
        return None, problems + [p for p in _names_only(raw, error) if p not in problems]
    problems = _all_cells(raw, rules=True)
    return (None if problems else scenario), problems


def _names_only(raw: dict[str, Any], error: ValidationError) -> list[Problem]:
    """Without the keys that failed: what the plug-ins say. Rules across keys would judge defaults instead."""
    rest = copy.deepcopy(raw)
    for detail in sorted(error.errors(), key=lambda d: str(d["loc"]), reverse=True):
        _drop(rest, detail["loc"])
    try:
        Scenario.model_validate(frozen({"name": "unnamed", **rest}))
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


def _all_cells(raw: dict[str, Any], *, rules: bool) -> list[Problem]:
    problems: list[Problem] = []
    memo: dict[str, list[Problem]] = {}
    try:
        for labels, one in expanded(raw):
            for problem in _cell_problems(one, memo, rules=rules):
                # What is wrong without the axes too is said once.
                twins = (problem, in_cell(problem, labels))
                if not any(t in problems for t in twins):
                    problems.append(twins[1] if labels and _depends(problem, labels) else problem)
    except PathError as error:
        problems.append(error.problem)
    return problems


def _depends(problem: Problem, labels: dict[str, Any]) -> bool:
    """Whether an axis can be behind a problem: it sets something in the same table."""
    heads = {parse_path(path)[0] for path in labels}
    return any(head in problem.path or head in problem.needs for head in heads)


def _cell_problems(raw: dict[str, Any], memo: dict[str, list[Problem]], *, rules: bool) -> list[Problem]:
    try:
        cell = Scenario.model_validate(frozen(raw))
    except ValidationError as error:
        return found_problems(error, Scenario)
    problems = []
    for group, path, plugin in used(cell):
        key = json.dumps([group, path, canonical(plugin.model_dump())], sort_keys=True, default=str)
        if key not in memo:
            memo[key] = plugin_problems(group, path, plugin)
        problems += memo[key]
    return problems + (rule_problems(cell) if rules else [])
