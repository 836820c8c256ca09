"""A suite as frozen data: several scenarios with one report."""

from typing import Annotated, Any, final

from pydantic import Field, model_validator

from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Name
from glasshouse.settings import Table


@final
class Entry(Table):
    """One entry of a suite.

    Attributes:
        use: name of a preset, or a path (relative to the suite's file) that ends in ``.toml``.
        set: overrides, path → value.
        system: the part of the product that it demonstrates (its run time is printed).
    """

    use: Name
    set: dict[str, Any] = Field(default_factory=dict)
    system: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, raw: Any) -> Any:
        return {"use": raw} if isinstance(raw, str) else raw


@final
class SuiteFile(Table):
    """The contents of a suite's file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    summary: str = ""
    scenarios: Annotated[tuple[Entry, ...], Field(min_length=1)]


@final
class Member(Table):
    """A scenario of a suite, with the part of the product that it demonstrates (may be empty)."""

    scenario: Scenario
    system: str = ""


@final
class Suite(Table):
    """Scenarios with one report. ``given``: the original text of the file."""

    name: str
    summary: str = ""
    members: tuple[Member, ...]
    given: str = ""

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        """The scenarios, in order."""
        return tuple(m.scenario for m in self.members)
