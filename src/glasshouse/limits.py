"""Ranges of a plug-in's arguments, declared in their types and checked before anything is built.

A field ``iterations: Count = 300`` is an ``int`` to Python; ``glasshouse check`` reads the range from the
type and reports values outside it. For code that calls the class directly, :func:`check_ranges` checks the
same types in ``__post_init__``. ``Annotated[Count, Fix("try 300")]`` adds advice for a value out of range.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import NoneType
from typing import Annotated, Any, Literal, final, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from glasshouse.errors import BadValue

__all__ = [
    "LARGEST",
    "Count",
    "Fix",
    "Fraction",
    "Natural",
    "NotNegative",
    "Positive",
    "Probability",
    "Share",
    "Unit",
    "check_ranges",
    "check_value",
]

LARGEST = 1e30
"""Products of larger numbers soon overflow float32."""

Count = Annotated[int, Ge(1), Le(2**31 - 1)]
Natural = Annotated[int, Ge(0), Le(2**31 - 1)]
Positive = Annotated[float, Gt(0), Le(LARGEST)]
NotNegative = Annotated[float, Ge(0), Le(LARGEST)]
Share = Annotated[float, Ge(0), Lt(1)]
Fraction = Annotated[float, Gt(0), Le(1)]
Probability = Annotated[float, Gt(0), Lt(1)]
Unit = Annotated[float, Ge(0), Le(1)]


@final
@dataclass(frozen=True)
class Fix:
    """Advice for a value outside a field's range, as shown in the error."""

    words: str


def check_ranges(settings: Any, subject: str, *, fix: str = "correct it") -> None:
    """Reject a dataclass with a value that its field's type does not allow: a range, or a list of names.

    Raises:
        BadValue: names the first such field, and what it needs.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Search:
        ...     steps: Count = 300
        >>> check_ranges(Search(steps=300), "a search")
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for name in (field.name for field in fields(settings) if field.init):
        check_value(subject, name, getattr(settings, name), hints[name], fix=fix)


def check_value(subject: str, name: str, value: Any, hint: Any, *, fix: str = "correct it") -> None:
    """Reject a value that its type does not allow, as :func:`check_ranges` does for every field.

    Raises:
        BadValue: says what ``name`` needs.

    Examples:
        >>> check_value("a search", "steps", 300, Annotated[Count, Fix("try 300")])
    """
    if NoneType in get_args(hint) and get_origin(hint) is not Literal:
        if value is None:
            return
        hint = next(one for one in get_args(hint) if one is not NoneType)
    for needs, holds in _conditions(hint):
        try:
            held = holds(value)
        except TypeError:  # a text, or nothing: no number at all
            held = False
        if not held:
            own = next((one.words for one in get_args(hint) if isinstance(one, Fix)), fix)
            raise BadValue(subject, needs=f"{name} {needs}", got=f"{name} = {value!r}", fix=own)


def _conditions(hint: Any) -> Iterator[tuple[str, Callable[[Any], bool]]]:
    if get_origin(hint) is Literal:
        yield f"one of {', '.join(map(str, get_args(hint)))}", get_args(hint).__contains__
    for limit in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        match limit:
            case Ge(least):
                yield f">= {least}", partial(operator.le, least)
            case Gt(below):
                yield f"> {below}", partial(operator.lt, below)
            case Le(most):
                yield f"<= {most}", partial(operator.ge, most)
            case Lt(above):
                yield f"< {above}", partial(operator.gt, above)


def is_finite(value: object) -> bool:
    """Whether every number in ``value`` is finite, at any depth of lists and tables."""
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
