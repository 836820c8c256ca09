"""``glasshouse report``, ``export``, ``compare`` and ``replay``: commands for finished runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Full, Json, Run, ShowPrivate, TrustFactory
from glasshouse.cli.parts.output import say, say_json
from glasshouse.errors import UnknownName

if TYPE_CHECKING:
    from glasshouse.api.run import Run as LoadedRun


def report(
    run: Run,
    *,
    show_private: ShowPrivate = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print the findings as tables")] = False,
    metrics: Annotated[list[str], typer.Option("--metric", help="in the tables; default: all")] = [],  # noqa: B006
    full: Full = False,
    as_json: Json = False,
) -> int:
    """Write report.html of RUN again, and print its summary."""
    with importing():
        from glasshouse.api.run import load
        from glasshouse.report.markdown import markdown

    loaded = load(run)
    loaded.write_report(show_private=show_private)
    if as_json:
        say_json(json.loads((run / "result.json").read_text(encoding="utf-8")), indent=1)
    elif as_markdown:
        say(markdown(loaded.result, metrics=_known_metrics(metrics, loaded)))
    else:
        loaded.show(full=full)
    return 0


def export(
    run: Run,
    *,
    csv: Annotated[Path | None, typer.Option(help="folder for findings, contrasts and utility")] = None,
    latex: Annotated[Path | None, typer.Option(help="folder for the same as LaTeX tables")] = None,
    figures: Annotated[Path | None, typer.Option(help="folder for charts (SVG) and pictures (PNG)")] = None,
    annex: Annotated[bool, typer.Option("--annex", help="annex.html and annex.md, for a DPIA")] = False,
    show_private: ShowPrivate = False,
) -> int:
    """Write tables and figures of RUN as files of their own."""
    with importing():
        from glasshouse.api.run import load

    folders = {"csv": csv, "latex": latex, "figures": figures}
    for path in load(run).export(**folders, annex=annex, show_private=show_private):
        say(path)
    return 0


def _known_metrics(metrics: list[str], loaded: "LoadedRun") -> list[str]:
    with importing():
        from glasshouse.registry import nearest_names

    known = tuple(dict.fromkeys(f.metric for f in loaded.findings))
    for name in metrics:
        if name not in known:
            raise UnknownName(
                f"metric '{name}'",
                needs="a metric of this run",
                got=f"'{name}'",
                fix=nearest_names(name, known),
            )
    return metrics


def compare(
    first: Run,
    second: Run,
    *,
    out: Annotated[
        Path | None, typer.Option(help="folder of compare.html and compare.json; default SECOND")
    ] = None,
    as_json: Json = False,
) -> int:
    """An earlier and a later run: which findings changed. Exit code 1 where one got worse."""
    with importing():
        from glasshouse.api.run import load
        from glasshouse.outside.screen import Screen
        from glasshouse.report.compare import compare as compare_results
        from glasshouse.report.compare import write_comparison

    results = [load(run).result for run in (first, second)]
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    comparison = compare_results(*results, names=names, run=second)
    page = write_comparison(comparison, (out or second) / "compare.html")
    if as_json:
        say_json(json.loads(page.with_suffix(".json").read_text(encoding="utf-8")), indent=1)
    else:
        console = Screen()
        console.print(comparison)
        console.print(f"page: {page}", soft_wrap=True)
    return comparison.exit_code


def replay(
    run: Run,
    attack: Annotated[str, typer.Option(help="registered name")],
    *,
    trust_factory: TrustFactory = False,
    swap: Annotated[
        bool, typer.Option("--swap", help="on other private data, simulated anew: claims must follow them")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run ATTACK again on what RUN's adversary saw, with the truth out of reach; compare its claims."""
    with importing():
        from glasshouse.audit.replay import replay as replay_run

    rows = replay_run(run, attack, trust_factory=trust_factory, swap=swap)
    if as_json:
        say_json(rows)
    else:
        for row in rows:
            words = ("other claims", "THE SAME claims") if swap else ("DIFFERENT claims", "same claims")
            say(f"{row['cell']} {row['unit']}: {words[row['same']]}")
        for cell, row in {row["cell"]: row for row in rows if "metric" in row}.items():
            say(
                f"{cell}: {row['metric']} {row['in_the_run']:.3g} in the run; the new claims have "
                f"{row['new_victims']:.3g} on the new victims, {row['old_victims']:.3g} on the run's"
            )
        data = "The private data were others, and out" if swap else "The truth was out"
        say(f"{data} of reach while the attack ran, by {rows[0]['isolation']}.")
    return 0 if all(row["same"] != swap for row in rows) else 1
