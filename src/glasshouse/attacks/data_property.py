"""Properties of clients that their own examples decide, so that the judge knows the truth."""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

__all__ = ["AsksDataProperty", "DataProperty"]


@final
@dataclass(frozen=True, kw_only=True)
class DataProperty:
    """More than a given share of a client's examples are of one class.

    Plain data: the judge compares it with the labels, which attack code never receives.

    Attributes:
        name: of the property and its settings: properties of equal name hold for the same clients.
        label: the class.
        above: share of the examples, in [0, 1), that must be exceeded.
    """

    name: str
    label: int
    above: float = 0.5


@runtime_checkable
class AsksDataProperty(Protocol):
    """An attack, or a property that it looks for, that asks which clients have a data property."""

    @property
    def data_property(self) -> DataProperty | None:
        """The property, if the clients' examples decide it; None: it is about behaviour or membership."""
