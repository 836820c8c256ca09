"""How long a run still takes, from the pieces that are finished; each finished piece corrects it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

UNSEEN: Final = 0.25
"""Share of all seconds known so far that kinds of work without a finished piece are taken to need."""
DECISIVE: Final = "attacks"
"""The kind that may take any multiple of the rest: before one of its pieces has finished, nothing is said."""


@final
@dataclass(kw_only=True)
class Remaining:
    """The work of a run by kind: how much is expected, done, and how long it took.

    Args:
        jobs: pieces that run at a time.
        expected: steps of each kind in the whole run; kinds that are finished may be expected again.
    """

    jobs: int
    expected: dict[str, float] = field(default_factory=dict)
    _done: dict[str, float] = field(init=False, default_factory=dict)
    _seconds: dict[str, float] = field(init=False, default_factory=dict)

    def expect(self, steps: Mapping[str, float]) -> None:
        """Add steps of some kinds to what the whole run has."""
        for kind, number in steps.items():
            self.expected[kind] = self.expected.get(kind, 0.0) + number

    def finish(self, kind: str, seconds: float, *, steps: float = 1.0) -> None:
        """A piece with this many steps of a kind took so many seconds of one process."""
        self._done[kind] = self._done.get(kind, 0.0) + steps
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds until the run ends; None before any piece, and any attack, has finished.

        Examples:
            >>> run = Remaining(jobs=2, expected={"attacks": 10})
            >>> run.seconds is None
            True
            >>> run.finish("attacks", 6.0, steps=2)
            >>> run.seconds
            12.0
        """
        if not self._done or (self.expected.get(DECISIVE) and not self._done.get(DECISIVE)):
            return None
        known, unseen = 0.0, False
        for kind, number in self.expected.items():
            done = self._done.get(kind, 0.0)
            unseen = unseen or (number > 0 and not done)
            if done:
                known += max(0.0, number - done) * self._seconds[kind] / done
        # What has not begun yet (certificates, scores) has no time of its own: a share of everything known.
        rest = UNSEEN * (known + sum(self._seconds.values())) if unseen else 0.0
        return (known + rest) / max(1, self.jobs)
