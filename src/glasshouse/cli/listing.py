"""``glasshouse list`` and ``glasshouse show``."""

import inspect
import tomllib
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from glasshouse.cli.parts.cards import card_row, missing_packages
from glasshouse.cli.parts.options import Json
from glasshouse.cli.parts.output import say, say_json
from glasshouse.errors import BrokenPlugin, NotInstalled, UnknownName
from glasshouse.outside.screen import Screen
from glasshouse.registry import GROUPS, card, flat_settings, load, names, nearest_names
from glasshouse.scenario.shipped import preset_text, presets

KINDS = (*GROUPS, "scenarios")


def list_plugins(
    group: Annotated[str, typer.Argument(help=", ".join(KINDS))] = "",
    as_json: Json = False,
) -> int:
    """Everything of one GROUP, a line each; without GROUP: the groups. 'show NAME' and --json say more."""
    if not group:
        counts = {group: len(names(group)) for group in GROUPS} | {"scenarios": len(presets())}
        rows = [{"name": group, "summary": f"{count} names"} for group, count in counts.items()]
    elif group == "scenarios":
        summaries = {name: tomllib.loads(preset_text(name)).get("summary", "") for name in presets()}
        rows = [{"name": name, "summary": summary} for name, summary in summaries.items()]
    elif group in GROUPS:
        rows = [_row(group, name) for name in names(group)]
    else:
        raise UnknownName(
            f"group '{group}'", needs=f"one of {', '.join(KINDS)}", got=group, fix=nearest_names(group, KINDS)
        )
    if as_json:
        say_json(rows)
        return 0
    table = Table(Column(no_wrap=True), Column(), box=None, pad_edge=False, show_header=False)
    for row in rows:
        table.add_row(row["name"], escape(row["summary"]))
    Screen().print(table)
    return 0


def show(
    name: Annotated[str, typer.Argument(help="a registered name, or a preset")],
    as_json: Json = False,
) -> int:
    """What NAME is: its description and its arguments with their defaults; of a preset, its text."""
    groups = [g for g in GROUPS if name in names(g)]
    preset = preset_text(name) if name in presets() else ""
    if preset and not groups and not as_json:
        say(preset)
        return 0
    # A name may stand for several things, a preset and an attack: all are shown.
    if not groups and not preset:
        everything = tuple(n for g in GROUPS for n in names(g)) + presets()
        raise UnknownName(
            f"'{name}'", needs="a registered name or a preset", got=name, fix=nearest_names(name, everything)
        )
    details = [_details(g, name) for g in groups]
    if as_json:
        scenario = [{"group": "scenarios", "name": name, "text": preset}] if preset else []
        say_json([*details, *scenario])
        return 0
    for one in details:
        say(f"{one['name']} ({one['group']}): {one['summary']}")
        for key in ("source", "threat", "grants", "extra"):
            if one[key]:
                say(f"  {key}: {one[key]}")
        for key, value in one["details"].items():
            say(f"  {key}: {value}")
        for argument, default in one["arguments"].items():
            say(f"  {argument} = {default}")
        say(inspect.cleandoc(one["doc"]))
    if preset:
        say(f"\n{name} (scenarios):\n{preset}")
    return 0


def _row(group: str, name: str) -> dict[str, Any]:
    try:
        row = card_row(group, name)
    except NotInstalled as error:
        return {"name": name, "summary": f"not installed: {error.fix}"}
    except BrokenPlugin as error:
        return {"name": name, "summary": f"warning: cannot be used: {error.got}; {error.fix}"}
    if row["extra"] and missing_packages(row["extra"]):
        row["summary"] += f" (not installed: pip install 'glasshouse[{row['extra']}]')"
    return {"name": name, **row, "grants": ", ".join(row["grants"])}


def _details(group: str, name: str) -> dict[str, Any]:
    factory = load(group, name)
    details = {
        n: "required" if default is inspect.Parameter.empty else repr(default)
        for n, default in flat_settings(factory, {}).items()
    }
    described = {**_row(group, name), "details": dict(card(group, name).details)}
    return {"group": group, **described, "arguments": details, "doc": _doc_of(factory, details)}


def _doc_of(factory: Any, shown: Iterable[str]) -> str:
    """Its docstring, with what its base classes say of settings that it has from them."""
    own = inspect.cleandoc(factory.__doc__ or "")
    told, further = explained(own), dict[str, str]()
    for base in getattr(factory, "__mro__", ())[1:]:
        said = explained(inspect.cleandoc(base.__doc__ or ""))
        further |= {name: text for name, text in said.items() if name in shown and name not in told | further}
    if not further:
        return own
    return "\n".join([own, "", "Args of all of its kind:", *further.values()])


def explained(doc: str) -> dict[str, str]:
    r"""The entries of the section ``Args`` of a cleaned docstring, with the lines that go on, by name.

    Examples:
        >>> explained("Noise.\n\nArgs:\n    std: its size,\n        in units.\n    seed: of it.")
        {'std': '    std: its size,\n        in units.', 'seed': '    seed: of it.'}
    """
    entries: dict[str, str] = {}
    last = ""
    for line in doc.partition("Args:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        # A deeper line goes on with the entry above it.
        if not line.startswith("     "):
            last = line.split(":")[0].strip()
            entries[last] = line
        elif last:
            entries[last] += "\n" + line
    return entries
