"""``glasshouse defenses``: check whether each declared defence is active."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Json, Run, TrustFactory
from glasshouse.cli.parts.output import say_json
from glasshouse.outside.files import printable
from glasshouse.outside.screen import Screen
from glasshouse.report.words import count, join_words
from glasshouse.results.rows import grouped

if TYPE_CHECKING:
    from glasshouse.api.defenses import CheckedDefenses

    with importing():
        from glasshouse.audit.defenses.declared import Judged

_SHOWN = 6


def defenses(
    run: Run,
    *,
    declared: Annotated[
        list[str] | None,
        typer.Option("--declared", help="as 'clip norm=4', as often as needed; default: as the run says"),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--config", help="a framework's file that declares filters, as often as needed"),
    ] = None,
    framework: Annotated[str, typer.Option(help="whose files: glasshouse list declarations")] = "nvflare",
    trust_factory: TrustFactory = False,
    as_json: Json = False,
) -> int:
    """Which defences the updates of RUN show, and how strong. Exit code 1 if one is not as declared."""
    with importing():
        from glasshouse.api.defenses import defenses as check

    checked = check(
        run, declared=declared, files=files or (), framework=framework, trust_factory=trust_factory
    )
    if as_json:
        say_json([row for one in checked for row in one.plain()])
    else:
        for one in checked:
            _print(one)
    return 1 if any(one.faults for one in checked) else 0


def _print(checked: "CheckedDefenses") -> None:
    console = Screen()
    title = f"{checked.name}: {checked.terms.protocol}, {count(checked.terms.clients, 'clients')}"
    if not checked.rows:
        none = f"{title}. No defence is declared, and no update shows one."
        console.print(none, highlight=False, soft_wrap=True)
        return
    names = ("defence", "clients", "declared", "observed", "ruling", "why")
    table = Table(*(Column(name, overflow="fold") for name in names), title=escape(printable(title)))
    for rows in _alike(checked.rows):
        first = rows[0]
        declared = "-" if math.isnan(first.declared) else f"{first.setting} = {first.declared:.4g}"
        reasons = list(dict.fromkeys(row.reason for row in rows))
        why = reasons[0] if len(reasons) == 1 else f"{reasons[0]} (one of {len(reasons)} reasons)"
        cells = (first.defense, _clients(rows), declared, _observed(rows), first.ruling, why)
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console.print(table)


def _alike(rows: "Sequence[Judged]") -> "list[list[Judged]]":
    """Group rows that differ only in client and measurement."""
    alike = grouped(rows, lambda r: (r.defense, r.setting, str(r.declared), r.ruling, r.client is None))
    return list(alike.values())


def _clients(rows: "Sequence[Judged]") -> str:
    clients = [str(row.client) for row in rows if row.client is not None]
    if not clients:
        return "server"
    return join_words(clients) if len(clients) <= _SHOWN else f"{len(clients)} of them"


def _observed(rows: "Sequence[Judged]") -> str:
    observations = [row.observation for row in rows]
    strengths = [one for one in observations if one.state == "on" and not math.isnan(one.value)]
    if not strengths:
        return "-" if any(one.state == "unclear" for one in observations) else "nothing"
    middle = sorted(strengths, key=lambda one: one.value)[len(strengths) // 2]
    shows, updates = sum(one.shows for one in observations), sum(one.updates for one in observations)
    return f"{middle.value:.4g} [{middle.low:.4g}, {middle.high:.4g}], {shows} of {updates} updates"
