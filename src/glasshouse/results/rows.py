"""Rows of a result as flat values, for data frames and CSV files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from glasshouse.errors import UnknownName, not_installed
from glasshouse.registry import nearest_names

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Rows", "flat", "grouped"]

T = TypeVar("T")  # one of the records
K = TypeVar("K")


class Rows(tuple[T, ...]):
    """Records of one kind, in order.

    Examples:
        >>> Rows([]).where(attack="idlg")
        ()
    """

    def where(self, **values: object) -> "Rows[T]":
        """The rows whose fields have these values: ``findings.where(attack="idlg", metric="psnr")``.

        Raises:
            UnknownName: the records have no such field.
        """
        for name in values:
            columns = tuple(f.name for f in fields(self[0])) if self else (name,)  # type: ignore[arg-type]
            if name not in columns:
                raise UnknownName(
                    f"field '{name}'",
                    needs=f"a field of {type(self[0]).__name__}",
                    got=f"'{name}'",
                    fix=nearest_names(name, columns),
                )
        return Rows(row for row in self if all(getattr(row, k) == v for k, v in values.items()))

    def to_frame(self) -> "DataFrame":
        """The rows as a pandas data frame; nested values become columns (``exchange.gain``).

        Raises:
            NotInstalled: pandas is missing.
        """
        try:
            import pandas as pd  # noqa: PLC0415 - an extra, and slow to import
        except ImportError as error:
            raise not_installed("data frames", "pandas", error, extra="frames") from error
        return pd.DataFrame([flat(row) for row in self])


def grouped(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The rows by their key; keys in the order of their first rows.

    Examples:
        >>> grouped(["two", "three", "six"], len)
        {3: ['two', 'six'], 5: ['three']}
    """
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def flat(row: Any) -> dict[str, Any]:
    """One record as a flat table; lists of strings are joined, lists of records are counted.

    Examples:
        >>> from glasshouse.results.records import Utility
        >>> table = flat(Utility(scenario="s", cell="c", axes={"model.width": 8}, defenses=("clip", "sign"),
        ...     metric="accuracy", value=0.9, low=0.8, high=1.0, n=20, rounds=1))
        >>> table["axes.model.width"], table["defenses"], table["n"]
        (8, 'clip + sign', 20)
    """
    table: dict[str, Any] = {}
    for field in fields(row):
        table |= _flat(field.name, getattr(row, field.name))
    return table


def _flat(name: str, value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {f"{name}.{key}": inner for key, inner in flat(value).items()}
    if isinstance(value, Mapping):
        return {f"{name}.{key}": inner for key, inner in value.items()}
    if isinstance(value, tuple):
        return {name: len(value) if value and is_dataclass(value[0]) else " + ".join(map(str, value))}
    return {name: value}
