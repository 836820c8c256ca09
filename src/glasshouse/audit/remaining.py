"""How long a run still takes, from the pieces that are finished; each finished piece corrects it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

UNSEEN: Final = 0.25
"""Share of all seconds known so far that kinds of work without a finished piece are taken to need."""
DECISIVE: Final = "attacks"
"""The family that may take any multiple of the rest: before a piece of it has finished, nothing is said."""


@final
@dataclass(kw_only=True)
class Remaining:
    """The work of a run by kind: how much is expected, done, and how long it took.

    Kinds of one family have a name in common before a colon (``attacks: dlg``, ``attacks: spear``).

    Args:
        jobs: pieces that run at a time.
        expected: steps of each kind in the whole run; kinds that are finished may be expected again.
        clock: tells the seconds that have passed.
    """

    jobs: int
    expected: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _done: dict[str, float] = field(init=False, default_factory=dict)
    _seconds: dict[str, float] = field(init=False, default_factory=dict)
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def expect(self, steps: Mapping[str, float]) -> None:
        """Add steps of some kinds to what the whole run has."""
        for kind, number in steps.items():
            self.expected[kind] = self.expected.get(kind, 0.0) + number

    def finish(self, kind: str, seconds: float, *, steps: float = 1.0) -> None:
        """A piece with this many steps of a kind took so many CPU seconds."""
        self._done[kind] = self._done.get(kind, 0.0) + steps
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds until the run ends; None before any piece, and any attack, has finished.

        CPU seconds become seconds on the wall at the rate of the run so far, which knows how busy the machine
        is, but at most at that of ``jobs`` free cores.

        Examples:
            >>> run = Remaining(jobs=2, expected={"attacks: dlg": 10}, clock=iter([0.0, 3.0]).__next__)
            >>> run.finish("attacks: dlg", 6.0, steps=2)
            >>> run.seconds
            12.0
        """
        if not self._done or (self._of_family(self.expected, DECISIVE) and not self._paced(DECISIVE)):
            return None
        known, unseen = 0.0, False
        for kind, number in self.expected.items():
            pace = self._pace(kind)
            unseen = unseen or (number > 0 and pace is None)
            known += max(0.0, number - self._done.get(kind, 0.0)) * (pace or 0.0)
        worked = sum(self._seconds.values())
        # What has not begun yet (certificates, scores) has no time of its own: a share of everything known.
        left = known + (UNSEEN * (known + worked) if unseen else 0.0)
        passed = self.clock() - self._begun
        return left * max(passed / worked if worked else 0.0, 1 / max(1, self.jobs))

    def _pace(self, kind: str) -> float | None:
        """CPU seconds of a step: of this kind, else of those of its family; None: none has finished."""
        family = kind.partition(":")[0]
        if not (done := self._done.get(kind)):
            done = self._of_family(self._done, family)
            return self._of_family(self._seconds, family) / done if done else None
        return self._seconds[kind] / done

    def _paced(self, family: str) -> bool:
        return self._of_family(self._done, family) > 0

    def _of_family(self, table: Mapping[str, float], family: str) -> float:
        return sum(number for kind, number in table.items() if kind.partition(":")[0] == family)
