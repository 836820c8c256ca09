"""Every error that this package raises on purpose. Each states what was needed, what was found, and a fix.

The command line exits with the class's ``exit_code``; the codes are listed in the README.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

__all__ = [
    "BadFile",
    "BadScenario",
    "BadValue",
    "BrokenPlugin",
    "DiskFull",
    "GlasshouseError",
    "Inapplicable",
    "Interrupted",
    "NotInstalled",
    "NothingClaimed",
    "Problem",
    "Undefined",
    "UnknownName",
    "WorkerKilled",
    "in_a_line",
    "not_installed",
]


class GlasshouseError(Exception):
    """Base class: ``except GlasshouseError`` catches the errors of this package and no others.

    Args:
        subject: what was being attempted, as the user would name it.
        needs: the condition, in the user's units.
        got: what was found instead, with where it was found.
        fix: one or two things the user can do now.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, subject: str, *, needs: str, got: str, fix: str) -> None:
        self.subject, self.needs, self.got, self.fix = subject, needs, got, fix
        super().__init__(f"{subject}\n  needs  {needs}\n  got    {got}\n  fix    {fix}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the four parts, so that errors can be sent from worker processes."""
        return (_rebuild, (type(self), self.subject, self.needs, self.got, self.fix))


def _rebuild(kind: type[GlasshouseError], subject: str, needs: str, got: str, fix: str) -> GlasshouseError:
    return kind(subject, needs=needs, got=got, fix=fix)


@final
class Inapplicable(GlasshouseError):
    """The method does not apply in this setting. Reported as 'not run', never as 'failed'."""


class Undefined(GlasshouseError):
    """The data do not determine the number. Reported as missing, never as 0."""


@final
class NothingClaimed(Undefined):
    """A score of the claims about one victim, of whom the attack claimed nothing; others may have a score."""


@final
class BadValue(GlasshouseError, ValueError):
    """An argument is out of range or of the wrong shape."""


@final
class BadFile(GlasshouseError):
    """A file is missing, corrupt, of a newer format, or not what its name promises."""


@final
class UnknownName(GlasshouseError, LookupError):
    """A registry has no entry of that name; the fix lists the nearest names."""


@final
class NotInstalled(GlasshouseError, ImportError):
    """An optional dependency is missing; the fix names the extra."""


def not_installed(
    subject: str, package: str, error: object, *, extra: str, instead: str = ""
) -> NotInstalled:
    """The error when ``package``, from the optional dependency group ``extra``, cannot be imported."""
    fix = f"pip install 'glasshouse[{extra}]'" + (f", or {instead}" if instead else "")
    return NotInstalled(subject, needs=f"the package {package}", got=str(error), fix=fix)


@final
class BrokenPlugin(GlasshouseError):
    """A registered plug-in cannot be imported, or two register its name; other names are not affected."""


@final
class DiskFull(GlasshouseError):
    """A file could not be written for lack of space. Finished work is kept."""


@final
class WorkerKilled(GlasshouseError):
    """A worker process died without returning a result, usually out of memory. Finished work is kept."""


@final
class Interrupted(GlasshouseError):
    """The user stopped the run. Finished work is kept; ``--resume`` continues."""

    exit_code: ClassVar[int] = 130


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake in a scenario file.

    Attributes:
        path: the setting, as dotted keys: ``defenses[1].name``.
        needs: the condition.
        got: what was found.
        hint: the nearest valid name or another fix; may be empty.
    """

    path: str
    needs: str
    got: str
    hint: str = ""


@final
class BadScenario(GlasshouseError):
    """A scenario or suite file has problems; all of them are shown at once."""

    def __init__(self, subject: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        width = max((len(p.path) for p in self.problems), default=0)
        lines = [
            f"{p.path:<{width}}  needs {p.needs}; got {p.got}" + (f"; {p.hint}" if p.hint else "")
            for p in self.problems
        ]
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        super().__init__(
            subject,
            needs="every setting valid",
            got=count + "".join(f"\n    {line}" for line in lines),
            fix="correct them; 'glasshouse check FILE' looks again, 'glasshouse show NAME' explains a name",
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the subject and the problems."""
        return (BadScenario, (self.subject, self.problems))


def in_a_line(error: BaseException) -> str:
    r"""An exception of somebody else's code: its type, and the first line of what it says, if anything.

    Examples:
        >>> in_a_line(NotImplementedError()), in_a_line(ValueError("no\nmore"))
        ('NotImplementedError', 'ValueError: no')
    """
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".removesuffix(": ")
