"""Entry point of the command line: errors become one message and a stable exit code."""

import ast
import logging
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from glasshouse import __version__
from glasshouse.cli.parts.failure import FAILED, failure_message
from glasshouse.cli.parts.interrupts import INTERRUPTED, MESSAGE, one_interrupt
from glasshouse.cli.parts.output import say, say_json
from glasshouse.errors import GlasshouseError

COMMANDS = {
    "audit": "glasshouse.cli.audit:audit",
    "collect": "glasshouse.cli.collect:collect",
    "terms": "glasshouse.cli.collect:terms",
    "schema": "glasshouse.cli.schema:schema",
    "check": "glasshouse.cli.check:check",
    "list": "glasshouse.cli.listing:list_plugins",
    "show": "glasshouse.cli.listing:show",
    "new": "glasshouse.cli.new:new",
    "replay": "glasshouse.cli.runs:replay",
    "report": "glasshouse.cli.runs:report",
    "export": "glasshouse.cli.runs:export",
    "compare": "glasshouse.cli.runs:compare",
    "defenses": "glasshouse.cli.defenses:defenses",
    "guard": "glasshouse.cli.guard:guard",
    "gate": "glasshouse.cli.gate:gate",
    "attest": "glasshouse.cli.evidence:attest",
    "verify": "glasshouse.cli.evidence:verify",
    "register": "glasshouse.cli.evidence:register",
}

DEBUG = "--debug"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    0: done, and every limit of the policy was shown to hold; 1: a limit was broken, the guard found
    something, a defence is not as declared, a bundle is refused, or a finding got worse between two runs;
    2: bad usage or input; 3: not shown (a limit is undecided or unmeasured, a control failed, or nothing
    was measured or can be compared); 70: an unexpected error; 130: interrupted, finished parts are kept.
    """
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    with one_interrupt():
        sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(command_line: list[str]) -> int:
    """Run the command line; return its exit code. Bad usage ends the process: typer says what was wrong."""
    debug = DEBUG in command_line
    command_line = [argument for argument in command_line if argument != DEBUG]
    try:
        application(command_line)(args=command_line)
    except SystemExit as end:  # every command ends so
        if end.code == INTERRUPTED:
            # A gate, a report or a check has nothing that could go on.
            say(MESSAGE if command_line[:1] == ["audit"] else "interrupted", error=True)
        raise
    except GlasshouseError as error:
        parts = {"subject": error.subject, "needs": error.needs, "got": error.got, "fix": error.fix}
        if "--json" in command_line:
            say_json({"error": parts}, error=True)
        else:
            say(error, error=True)
        return error.exit_code
    except Exception as error:  # outermost handler: nothing above could report it
        if debug:
            raise
        say(failure_message(error), error=True)
    return FAILED


class _Commands(TyperGroup):
    """The exit code of a command is what it returns."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and end with its code."""
        return ctx.exit(super().invoke(ctx) or 0)


def application(command_line: list[str]) -> typer.Typer:
    """The command-line application; only the requested command is imported."""
    app = typer.Typer(
        name="glasshouse",
        cls=_Commands,
        help="Measure what a federated-learning set-up leaks about its clients.",
        no_args_is_help=True,
        add_completion=False,
        suggest_commands=False,  # click already does
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_options)
    requested = next((argument for argument in command_line if not argument.startswith("-")), "")
    for name, place in COMMANDS.items():
        if name == requested:
            app.command(name)(load_command(place))
        else:
            app.command(name, help=help_line(place))(_not_loaded)
    return app


def help_line(place: str) -> str:
    """The first line of the docstring of the function at ``module:name``, read without importing it."""
    module, _, name = place.partition(":")
    spec = find_spec(module)
    assert spec is not None  # one of our own commands
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def load_command(place: str) -> Callable[..., Any]:
    """The function at ``module:name``."""
    command: Callable[..., Any] = EntryPoint(name="", value=place, group="").load()
    return command


def _not_loaded() -> None:
    """Placeholder for a command that was not requested."""


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an unforeseen error.")] = False,
) -> None:
    del debug  # handled before the command line is parsed
    if version:
        say(f"glasshouse {__version__}")
        raise typer.Exit
