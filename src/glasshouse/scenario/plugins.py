"""Check a plug-in's name and arguments against its factory before anything is built."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import PureWindowsPath
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from glasshouse import registry
from glasshouse.errors import GlasshouseError, Problem
from glasshouse.limits import is_finite
from glasshouse.outside.files import is_path
from glasshouse.scenario.problems import condition, show_value, unmet
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin, canonical
from glasshouse.settings import model_call

KINDS_OF_FILES: Final = {
    ".npz": "npz",
    ".zip": "zip",
    ".csv": "table",
    ".parquet": "table",
    ".txt": "text",
    ".npy": "arrays",
    ".nii": "nifti",
    ".dcm": "dicom",
}
"""The source that reads files of a suffix; all else is taken for a folder."""
# Cheap to construct, so their own checks can run during validation.
CONSTRUCTED = frozenset({"attacks", "defenses", "behaviours", "transforms"})
# The scenario key of the name, where it is not below the plug-in's own path.
NAMED = {"protocols": "federation.protocol", "datasets": "data.source", "partitioners": "data.partition"}
# Groups whose required arguments come from the scenario; for other groups the builder supplies them.
CHECKED = CONSTRUCTED | {"models"}


# The group of each list of plug-ins, by its path in a scenario.
LISTS = {
    "federation.behaviours": "behaviours",
    "federation.client_models": "models",
    "data.domains.shifts": "transforms",
    "defenses": "defenses",
    "attacks": "attacks",
    "audit.metrics": "metrics",
}


def used_plugins(scenario: Scenario) -> Iterator[tuple[str, str, Plugin]]:
    """(group, path, plug-in) of every plug-in in a scenario."""
    yield "models", "model", scenario.model
    protocol = Plugin.model_validate({**scenario.federation.options, "name": scenario.federation.protocol})
    yield "protocols", "federation.options", protocol
    for path, group in LISTS.items():
        for i, plugin in enumerate(attrgetter(path)(scenario)):
            yield group, f"{path}[{i}]", plugin
    source = scenario.data.source
    yield "datasets", "data.source", Plugin(name=source if is_path(source) else source.split(":", 1)[0])
    yield "partitioners", "data.partition", Plugin(name=scenario.data.partition)


def plugin_problems(group: str, path: str, plugin: Plugin) -> list[Problem]:
    """All problems of one plug-in: unknown name; unknown, missing or ill-typed arguments; invalid values."""
    if group == "datasets" and is_path(plugin.name):
        kind = KINDS_OF_FILES.get(PureWindowsPath(plugin.name).suffix.lower(), "folder")
        needs = "what the path holds, before it: KIND:PATH"
        return [unmet("data.source", needs, got=f"'{plugin.name}'", hint=f'write "{kind}:{plugin.name}"')]
    if group not in CHECKED and not plugin.arguments and plugin.name in registry.names(group):
        return []  # nothing to check: avoid a slow import
    try:
        factory = registry.load_model(plugin.name) if group == "models" else registry.load(group, plugin.name)
    except GlasshouseError as error:
        where = NAMED.get(group, f"{path}.name")
        return [unmet(where, error.needs, got=error.got, hint=error.fix)]
    problems = list(_argument_problems(group, path, plugin, factory))
    return problems or (_refusal_problems(factory, path, plugin.arguments) if group in CONSTRUCTED else [])


def _argument_problems(
    group: str, path: str, plugin: Plugin, factory: Callable[..., Any]
) -> Iterator[Problem]:
    takes = model_call(factory).settings if group == "models" else registry.arguments(factory)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values())
    keys = (*takes, *(type(plugin).model_fields.keys() - {"arguments"}))
    for key, value in plugin.arguments.items():
        key_path = f"{path}.{key}"
        if not is_finite(value):
            yield unmet(key_path, "finite numbers", got=show_value(value))
        elif key in takes:
            yield from _value_problems(key_path, value, takes[key])
        elif not open_ended:
            needs, hint = f"an argument of '{plugin.name}'", registry.nearest_names(key, keys)
            yield unmet(key_path, needs, got=f"'{key}'", hint=hint)
    for key, parameter in takes.items():
        if parameter.default is parameter.empty and key not in plugin.arguments and group in CHECKED:
            needs = f"a value ('{plugin.name}' has no default for it)"
            yield unmet(f"{path}.{key}", needs, got="nothing")


def _value_problems(path: str, value: Any, parameter: inspect.Parameter) -> list[Problem]:
    annotation = parameter.annotation
    table = registry.table_of(parameter)
    if table is not None:
        return list(_table_problems(path, value, table))
    if annotation is parameter.empty or isinstance(annotation, str):
        return []
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(
            annotation, config=ConfigDict(strict=True, allow_inf_nan=False)
        )
        schema = adapter.json_schema()
    except PydanticUserError:
        return []  # a type of the plug-in's own, validated by its constructor
    # TOML has only lists; a plug-in may expect a list or a tuple.
    for form in (value, canonical(value)):
        try:
            adapter.validate_python(form)
        except ValidationError:
            continue
        return []
    options = tuple(str(o) for o in schema.get("enum", ()))
    hint = registry.nearest_names(value, options) if options and isinstance(value, str) else ""
    return [unmet(path, condition(schema, schema), got=show_value(value), hint=hint)]


def _table_problems(path: str, value: Any, table: Callable[..., Any]) -> Iterator[Problem]:
    """All problems of a table that is given for an argument with several settings."""
    takes = registry.arguments(table)
    if not isinstance(value, Mapping):
        yield unmet(path, "a table", got=show_value(value))
        return
    for key, setting in value.items():
        if key in takes:
            yield from _value_problems(f"{path}.{key}", setting, takes[key])
        else:
            needs, hint = f"one of {', '.join(takes)}", registry.nearest_names(key, tuple(takes))
            yield unmet(f"{path}.{key}", needs, got=f"'{key}'", hint=hint)


def _refusal_problems(factory: Callable[..., Any], path: str, arguments: Mapping[str, Any]) -> list[Problem]:
    try:
        registry.create(factory, arguments)
    except GlasshouseError as error:
        return [unmet(path, error.needs, got=error.got, hint=error.fix)]
    except (TypeError, ValueError) as error:  # third-party constructors may raise anything
        return [unmet(path, "arguments that the plug-in accepts", got=str(error))]
    return []
