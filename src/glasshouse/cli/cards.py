"""Plug-in descriptions for ``glasshouse list``, parsed from source code to avoid importing torch."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
    call = None if tree is None else next(_cards(tree, entry.attr), None)
    try:
        fields = None if tree is None or call is None else _fields_of(call, tree, {})
    except (ValueError, LookupError):
        return None
    empty = Card(summary="")
    return fields and {field: fields.get(field, getattr(empty, field)) for field in FIELDS}


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
    """The call that makes the card of a class, of a function, or of a function that another one returns."""
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name, body=body):
                lines = (line for line in body if isinstance(line, ast.Assign | ast.AnnAssign))
                every = [line.value for line in lines if "card" in map(ast.unparse, _targets(line))]
            case ast.FunctionDef(name=name, decorator_list=decorators):
                inner = [x for d in decorators if isinstance(d, ast.Call) for x in d.args]  # carded(Card())
                every = [call for call in (*decorators, *inner) if _is_card(call)]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=arguments)):
                every = [call for call in arguments if _is_card(call)]
            case _:
                continue
        if name == factory:
            yield from (call for call in every if isinstance(call, ast.Call))


def _targets(line: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return line.targets if isinstance(line, ast.Assign) else [line.target]


def _is_card(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == Card.__name__


def _fields_of(call: ast.Call, tree: ast.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a card, or of the card that the called function returns; ``given``: values of names.

    Raises:
        ValueError: a value that a list shows is no literal.
        LookupError: the called function cannot be found, or returns something else.
    """
    passed = {k.arg: k.value for k in call.keywords if k.arg is not None}
    if _is_card(call):
        if call.args or len(passed) < len(call.keywords):
            raise LookupError(ast.unparse(call))
        return {name: _value(node, tree, given) for name, node in passed.items() if name in FIELDS}
    function, home = _definition(ast.unparse(call.func), tree)
    takes, last = function.args, function.body[-1]
    if not (isinstance(last, ast.Return) and isinstance(last.value, ast.Call)):
        raise LookupError(function.name)
    passed |= {parameter.arg: node for parameter, node in zip(takes.args, call.args, strict=False)}
    defaults = [*zip(reversed(takes.args), reversed(takes.defaults), strict=False)]
    defaults += [(p, node) for p, node in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if node]
    values = {p.arg: _value(node, home, {}) for p, node in defaults if p.arg in FIELDS}
    values |= {name: _value(node, tree, given) for name, node in passed.items() if name in FIELDS}
    return _fields_of(last.value, home, values)


def _value(node: ast.expr, tree: ast.Module, given: Mapping[str, Any]) -> Any:
    """The value of a literal, or of a name for one: among ``given``, or a constant of the module."""
    if isinstance(node, ast.Name):
        if node.id in given:
            return given[node.id]
        lines = (line for line in tree.body if isinstance(line, ast.Assign | ast.AnnAssign) and line.value)
        constants = {ast.unparse(target): line.value for line in lines for target in _targets(line)}
        node = constants.get(node.id) or node
    return ast.literal_eval(node)


def _definition(name: str, tree: ast.Module) -> tuple[ast.FunctionDef, ast.Module]:
    """A function and the module that defines it: this one, or the one that it is imported from.

    Raises:
        LookupError: there is no such function.
    """
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return statement, tree
        if isinstance(statement, ast.ImportFrom) and name in {alias.name for alias in statement.names}:
            home = parse_module(statement.module or "")
            return _definition(name, home or ast.Module(body=[], type_ignores=[]))
    raise LookupError(name)
