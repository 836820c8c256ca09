"""Where the program starts and ends: errors become one message and a stable exit code."""

import json
import logging
import sys

import typer
from typer._click.exceptions import ClickException  # typer exports it under no other name

from glasshouse.cli import audit, check, listing, runs
from glasshouse.cli.guard import guard
from glasshouse.errors import GlasshouseError
from glasshouse.process import settle

app = typer.Typer(
    name="glasshouse",
    help="Measure what a federated-learning set-up leaks about its clients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("audit")(audit.audit)
app.command("check")(check.check)
app.command("list")(listing.list_plugins)
app.command("show")(listing.show)
app.command("replay")(runs.replay)
app.command("report")(runs.report)
app.command("compare")(runs.compare)
app.command("guard")(guard)

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    0 done; 1 the policy was broken, or the guard found something; 2 bad usage or input; 3 no power (a
    control failed); 130 interrupted, what is finished is kept.
    """
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    settle()
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=given, standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted; what is finished is kept, --resume goes on", file=sys.stderr)
        code = INTERRUPTED
    except GlasshouseError as error:
        _print_error(error, as_json="--json" in given)
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(error: GlasshouseError, *, as_json: bool) -> None:
    if as_json:
        parts = {"subject": error.subject, "needs": error.needs, "got": error.got, "fix": error.fix}
        print(json.dumps({"error": parts}), file=sys.stderr)
    else:
        print(error, file=sys.stderr)
