"""Validation and cost estimate of an audit before it is run."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

from torch import nn

from glasshouse.api.scenario import Arrays, Asked, ask, in_memory
from glasshouse.audit.cost.estimate import costs
from glasshouse.audit.cost.rows import Row
from glasshouse.audit.preflight.data import survey_data
from glasshouse.audit.preflight.inspect import check_suite, foreseen_refusals, problems
from glasshouse.audit.preflight.network import describe, networks
from glasshouse.executors.base import choose_device
from glasshouse.executors.local import Local
from glasshouse.scenario.axes import cells
from glasshouse.scenario.suite import Suite
from glasshouse.wire import Refusal

__all__ = ["Checked", "check"]

_UNITS = {"cpu": "CPU s", "cuda": "GPU s", "mps": "GPU s"}


@final
@dataclass(frozen=True, kw_only=True)
class Checked:
    """A valid suite. Its ``str`` is the output of ``glasshouse check``.

    Attributes:
        suite: its scenarios, with all defaults filled in.
        networks: a description of each of the user's own networks.
        costs: a row for each part of the audit, the total last.
        refusals: (scenario, refusal) of attacks that will not run in some cell; the report will say why.
    """

    suite: Suite
    networks: tuple[str, ...]
    costs: tuple[Row, ...]
    refusals: tuple[tuple[str, Refusal], ...]

    def __str__(self) -> str:
        count = sum(len(cells(s)) for s in self.suite.scenarios)
        lines = [f"suite '{self.suite.name}' is valid: {len(self.suite.scenarios)} scenarios, {count} cells"]
        lines += [f"  network {sentence}" for sentence in self.networks]
        lines += [f"  {row['scenario']}: {row['part']}: {row_words(row)}" for row in self.costs]
        lines += [
            f"  {name}: will refuse: {r.subject} needs {r.needs}; got {r.got}; {r.fix}"
            for name, r in self.refusals
        ]
        return "\n".join(lines)


def check(
    scenario: Asked,
    *,
    data: Arrays | None = None,
    model: nn.Module | None = None,
    sets: Sequence[str] = (),
    probe: bool = True,
    device: str = "cpu",
) -> Checked:
    """Report all errors that :func:`audit` would raise at once, and estimate the cost of the audit.

    The user's own network is built, and tested with one forward and backward pass.

    Args:
        scenario: as for :func:`audit`.
        data: as for :func:`audit`.
        model: as for :func:`audit`.
        sets: as for :func:`audit`.
        probe: time a short part of each attack; False: only count.
        device: where attacks are timed: ``auto``, ``cpu``, ``cuda`` or ``mps``.

    Raises:
        UnknownName: no preset of that name.
        BadFile: a file cannot be read.
        BadScenario: all problems of the scenario.

    Examples:
        >>> checked = check("digits-inversion", probe=False)
        >>> checked.costs[-1]["part"]
        'total'
    """
    with tempfile.TemporaryDirectory() as place:
        suite = ask(scenario, [*sets, *in_memory(data, model, Path(place))], inspect=problems)
        check_suite(suite)
        return Checked(
            suite=suite,
            networks=_own_networks(suite),
            costs=tuple(costs(suite, timer=_stopwatch(device) if probe else None)),
            refusals=tuple(foreseen_refusals(suite)),
        )


def row_words(row: dict[str, Any]) -> str:
    """Counts and seconds of one row of the costs; for the total, the seconds of each device.

    Examples:
        >>> row_words({"calls": 2, "unit": "steps", "evaluations": 1200, "seconds": 3.2, "device": "cuda"})
        '2 calls, 1,200 steps, about 3 GPU s'
    """
    words = [f"{row['calls']:,} calls"]
    if row["evaluations"] is not None:
        words.append(f"{row['evaluations']:,} {row['unit']}")
    if row["seconds"] is not None:
        devices = row.get("devices", {row["device"]: row["seconds"]})
        least = "at least " if row.get("unmeasured") else "about "
        words.append(least + " and ".join(f"{s:,.0f} {_UNITS[d]}" for d, s in devices.items()))
    notes = []
    if row.get("unmeasured"):
        notes.append(f"not timed and not in it: {', '.join(row['unmeasured'])}")
    if isinstance(row.get("estimated"), list) and row["estimated"]:
        names = ", ".join(row["estimated"])
        notes.append(f"estimated from similar work, as the time for probes was over: {names}")
    return "; ".join([", ".join(words), *notes])


def _stopwatch(device: str) -> Any:
    """A timer for probes; imported lazily, as only probes simulate and the import is slow."""
    with Local().start() as workers:
        chosen = choose_device(device, workers.devices)
    return import_module("glasshouse.audit.cost.probe").Stopwatch(chosen)


def _own_networks(suite: Suite) -> tuple[str, ...]:
    descriptions: dict[str, None] = {}
    for scenario in (cell.scenario for member in suite.scenarios for cell in cells(member)):
        survey = survey_data(scenario)[0]
        if survey is not None:
            descriptions |= {describe(n): None for _, n in networks(scenario, survey) if ":" in n.name}
    return tuple(descriptions)
