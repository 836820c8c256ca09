"""Ranges of a plug-in's arguments, declared in their types and checked before anything is built.

A field ``iterations: Count = 300`` is an ``int`` to Python; ``glasshouse check`` reads the range from the
type and says what it needs. It says nothing to code that calls the class itself.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

__all__ = ["LARGEST", "Count", "Fraction", "Natural", "NotNegative", "Positive", "Share"]

LARGEST = 1e30
"""Numbers beyond it leave float32 as soon as they are multiplied."""

Count = Annotated[int, Ge(1), Le(2**31 - 1)]
Natural = Annotated[int, Ge(0), Le(2**31 - 1)]
Positive = Annotated[float, Gt(0), Le(LARGEST)]
NotNegative = Annotated[float, Ge(0), Le(LARGEST)]
Share = Annotated[float, Ge(0), Lt(1)]
Fraction = Annotated[float, Gt(0), Le(1)]
