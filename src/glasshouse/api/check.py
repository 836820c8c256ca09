"""Validation of an audit before it is run, and a count of its work."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import nn

from glasshouse.api.arrays import Arrays, named_arrays
from glasshouse.api.scenario import Asked, ask, in_memory, unasked
from glasshouse.audit.count import STARTING, Speed, Work, count, magnitude, measure_speed
from glasshouse.audit.preflight.inspect import (
    check_suite,
    foreseen_refusals,
    problems,
    silences_out_of_reach,
    unscored_claims,
)
from glasshouse.audit.preflight.network import large_deltas, own_networks
from glasshouse.process import as_torch_starts
from glasshouse.scenario.axes import cells
from glasshouse.scenario.suite import Suite
from glasshouse.wire import Refusal

__all__ = ["Checked", "check"]


@final
@dataclass(frozen=True, kw_only=True)
class Checked:
    """A valid suite. Its ``str`` is the output of ``glasshouse check``.

    Attributes:
        suite: its scenarios, with all defaults filled in.
        networks: a description of each of the user's own networks.
        remarks: what to know of the guarantees of its defences, and attacks that no metric scores.
        work: what each part of the audit does, the total last.
        speed: of one core of this machine.
        refusals: (scenario, refusal) of attacks that will not run in some cell; the report will say why.
    """

    suite: Suite
    networks: tuple[str, ...]
    remarks: tuple[str, ...]
    work: tuple[Work, ...]
    speed: Speed
    refusals: tuple[tuple[str, Refusal], ...]

    def __str__(self) -> str:
        count = sum(len(cells(s)) for s in self.suite.scenarios)
        lines = [f"suite '{self.suite.name}' is valid: {len(self.suite.scenarios)} scenarios, {count} cells"]
        lines += [f"  network {sentence}" for sentence in self.networks]
        lines += [f"  {remark}" for remark in self.remarks]
        lines += [f"  {s.name}: {note}" for s in self.suite.scenarios for note in s.audit.auto]
        lines += [f"  {row.scenario}: {row.part}: {row}" for row in self.work]
        lines += [f"  order of magnitude: {self.duration}"] if self.duration else []
        lines += [
            f"  {name}: will refuse: {r.subject} needs {r.needs}; got {r.got}; {r.fix}"
            for name, r in self.refusals
        ]
        return "\n".join(lines)

    @property
    def duration(self) -> str:
        """How long one core takes for what was counted, to an order of magnitude; empty: nothing was."""
        cost = self.work[-1].cost
        return f"{magnitude(cost.seconds(self.speed) + STARTING)} on one core" if cost else ""


@as_torch_starts()
def check(
    scenario: Asked | nn.Module,
    data: Arrays | None = None,
    *,
    model: nn.Module | None = None,
    sets: Sequence[str] = (),
    captured: Path | str | None = None,
    probe: bool | None = None,
) -> Checked:
    """Report all errors that :func:`audit` would raise at once, and count the work of the audit.

    The user's own network is built, and tested with one forward and backward pass.

    Args:
        scenario: as for :func:`audit`.
        data: as for :func:`audit`.
        model: as for :func:`audit`.
        sets: as for :func:`audit`.
        captured: as for :func:`audit`.
        probe: has no effect and will go: nothing is timed any more.

    Raises:
        UnknownName: no preset of that name.
        BadFile: a file cannot be read.
        BadScenario: all problems of the scenario.

    Examples:
        >>> checked = check("digits-inversion")
        >>> checked.work[-1].part
        'total'
    """
    del probe
    data = None if data is None else named_arrays(data)  # once: a data set may draw at random
    scenario, model = unasked(scenario, data, model)
    with tempfile.TemporaryDirectory() as place:
        suite = ask(
            scenario, [*sets, *in_memory(data, model, Path(place))], inspect=problems, captured=captured
        )
        # Every cell is looked at once; what follows is said of what was seen.
        looks = check_suite(suite)
        return Checked(
            suite=suite,
            networks=own_networks(looks.values()),
            remarks=(
                *large_deltas(looks.values()),
                *unscored_claims(looks.values()),
                *silences_out_of_reach(looks.values()),
            ),
            refusals=tuple(foreseen_refusals(looks.values())),
            work=count(suite, looks),
            speed=measure_speed(),
        )
