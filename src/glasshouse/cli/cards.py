"""Plug-in descriptions for ``glasshouse list``, parsed from source code to avoid importing torch."""

import ast
import functools
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

from glasshouse import registry
from glasshouse.registry import Card

FIELDS = ("summary", "source", "threat", "grants", "extra")


def card_row(group: str, name: str) -> dict[str, Any]:
    """The fields of a plug-in's card that a list shows.

    They are parsed from its module's source if each is a literal or a name for one; otherwise the plug-in is
    imported.

    Raises:
        NotInstalled: the plug-in had to be imported, and its extra is missing.
    """
    fields = _read_fields(registry.entry(group, name))
    if fields is None:
        card = registry.card(group, name)
        return {field: getattr(card, field) for field in FIELDS}
    return fields


def missing_packages(extra: str) -> tuple[str, ...]:
    """Packages of the optional dependency group ``extra`` that are not installed."""
    marker = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    requirements = (line for line in requires("glasshouse") or () if marker.search(line))
    packages = (re.match(r"[\w.-]+", line) for line in requirements)
    return tuple(package[0] for package in packages if package and not _is_installed(package[0]))


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _read_fields(entry: EntryPoint) -> dict[str, Any] | None:
    """The fields as written in the source; None: they cannot be parsed."""
    tree = parse_module(entry.module)
    if tree is None:
        return None
    constants = {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    call = next(_cards(tree, entry.attr), None)
    if call is None or call.args:
        return None
    fields: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        if keyword.arg in FIELDS:
            value = keyword.value
            value = constants.get(value.id, value) if isinstance(value, ast.Name) else value
            try:
                fields[keyword.arg] = ast.literal_eval(value)
            except ValueError:
                return None
    empty = Card(summary="")
    return {field: fields.get(field, getattr(empty, field)) for field in FIELDS}


@functools.cache
def parse_module(module: str) -> ast.Module | None:
    """The syntax tree of a module; None if it has no source that can be parsed."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        return ast.parse(Path(spec.origin).read_bytes())
    except SyntaxError:
        return None


def _cards(tree: ast.Module, factory: str) -> Iterator[ast.Call]:
    """The card in the body of the class ``factory``, or in a decorator of the function ``factory``."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == factory:
            for line in statement.body:
                if isinstance(line, (ast.Assign, ast.AnnAssign)) and _is_card(line.value):
                    yield line.value
        if isinstance(statement, ast.FunctionDef) and statement.name == factory:
            for decorator in statement.decorator_list:
                if isinstance(decorator, ast.Call):
                    yield from (argument for argument in decorator.args if _is_card(argument))


def _is_card(node: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Card.__name__
