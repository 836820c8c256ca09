"""Properties of clients that their own examples show, so that the judge knows who has them."""

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["DataProperty", "PropertyAttack"]


@runtime_checkable
class DataProperty(Protocol):
    """Something that is true of some clients because of the examples they hold."""

    @property
    def name(self) -> str:
        """Of the property with its settings: what has the same name is shared by the same clients."""
        ...

    def holds(self, labels: Tensor) -> bool:
        """Whether a client with examples of these classes (n,) has it."""
        ...


@runtime_checkable
class PropertyAttack(Protocol):
    """An attack that asks which clients have a property."""

    @property
    def data_property(self) -> DataProperty | None:
        """The property, if the examples of clients show who has it; None: it is conduct or membership."""
        ...
