"""Properties of clients that their own examples show, so that the judge knows who has them."""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

__all__ = ["AsksDataProperty", "DataProperty"]


@final
@dataclass(frozen=True, kw_only=True)
class DataProperty:
    """More than a share of a client's examples are of one class.

    Plain data: the judge compares it with the labels, which no attack's code is handed.

    Attributes:
        name: of the property with its settings: what has the same name is shared by the same clients.
        label: the class.
        above: share of the examples, in [0, 1), that is exceeded.
    """

    name: str
    label: int
    above: float = 0.5


@runtime_checkable
class AsksDataProperty(Protocol):
    """An attack, or what it looks for, that asks which clients have a property."""

    @property
    def data_property(self) -> DataProperty | None:
        """The property, if the examples of clients show who has it; None: it is conduct or membership."""
        ...
