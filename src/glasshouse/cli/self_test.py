"""``glasshouse guard --self-test``: test the guard against disguised versions of the shipped attacks."""

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from glasshouse.api.self_test import HONEST, MISS, Trial, examples, run_cases
from glasshouse.api.self_test_cases import CASES
from glasshouse.guard.evasions import EVASIONS
from glasshouse.progress import track

EXPLANATION = (
    "Read: share of a batch of 64 that the attack's own read-out recovers from the update of a model that "
    "passed; in brackets, from an honest model's update. A miss is a crafted model that passes and gives "
    f"away {MISS:.0%} of the batch more than an honest one does, or an honest model that is refused."
)


def self_test(data: str = "", *, as_json: bool = False) -> int:
    """Print which models are caught and which pass; return 1 if there is a miss.

    Args:
        data: see :func:`glasshouse.api.self_test.examples`; empty: built-in digits.
        as_json: print all trials as JSON instead.
    """
    batch, classes = examples(data or "digits")
    total = len(CASES) * (len(EVASIONS) + 1)
    trials = [*track(run_cases(batch, classes=classes), "self-test of the guard", total=total)]
    missed = [one for one in trials if one.missed]
    if as_json:
        print(json.dumps([{**asdict(one), "missed": one.missed} for one in trials]))
    else:
        _print(trials)
        _sum_up(trials, missed)
    return 1 if missed else 0


def _print(trials: list[Trial]) -> None:
    table = Table(title="attacks in disguise, at the guard's shipped limits")
    for column in ("attack", "disguise", "guard", "read (honest)"):
        table.add_column(column)
    for case in dict.fromkeys(one.case for one in trials):
        case_trials = [one for one in trials if one.case == case]
        caught = [one for one in case_trials if one.findings and one.evasion != HONEST]
        crafted = [one for one in case_trials if one.evasion != HONEST]
        table.add_row(case, f"{len(crafted)} tried", f"{len(caught)} caught", "")
        for one in case_trials:
            if one.missed or not (one.findings or one.evasion == HONEST):
                word = "MISS" if one.missed else "passed"
                table.add_row("", one.evasion, word, f"{one.leak:.0%} ({one.usual:.0%})")
    console = Console()
    console.print(table)
    console.print(EXPLANATION, soft_wrap=True, highlight=False)


def _sum_up(trials: list[Trial], missed: list[Trial]) -> None:
    crafted = [one for one in trials if one.evasion != HONEST]
    honest = [one for one in trials if one.evasion == HONEST]
    caught = sum(bool(one.findings) for one in crafted)
    refused = sum(bool(one.findings) for one in honest)
    print(
        f"{caught} of {len(crafted)} crafted models caught, {len(crafted) - caught} passed; "
        f"{refused} of {len(honest)} honest models refused; misses: {len(missed)}."
    )
    leaking = sum(not one.findings and one.leak >= MISS and not one.missed for one in crafted)
    if leaking:
        print(
            f"{leaking} of those that passed give away {MISS:.0%} of the batch or more, as honest models "
            "do: look at the update before it is sent (preflight)."
        )
