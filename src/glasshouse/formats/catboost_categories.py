"""Categories in CatBoost's models: how a text becomes a number, and what a split or a table says of it.

A model names a category by a hash of its text. A split asks for one category (``OneHotFeature``), or for
those whose statistic lies above a border (``OnlineCtr``); the statistics stand in ``ctr_data`` as tables: how
many rows of the training data have each category (``Counter``), or how many of each class (``Borders``,
``Buckets``). Categories are numbered here as in these tables.

The tables count every row that was trained on. A split by a ``Counter`` so sends every row of one category to
the same side. A split by classes does not: while it trains, CatBoost computes that statistic from the rows
before each row, in an order that the file does not state. Such a split is not read, and neither is one of a
combination of columns.

Source: CatBoost, documentation of JSON models and of its evaluator in Python (the combined hash, and the
statistic against its border); CityHash 1.0 (Google), which numbers texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from glasshouse.formats.base import bad, field, json_of, numbers, whole_numbers
from glasshouse.formats.records import Category, CategoryTable

_WORD: Final = 2**64 - 1
_K0, _K1, _K2, _K3 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
_MIXING: Final = 0x9DDFEA08EB382D69
_COMBINING: Final = 0x4906BA494954CB65
_NOBODY: Final = _WORD
"""The key of an empty place of a table."""
_BY_CLASS: Final = ("Borders", "Buckets")
_VALUE: Final = "cat_feature_value"


def key_of(text: str) -> int:
    """The number of a category in tables and splits.

    Examples:
        >>> key_of("Never-married")
        3922001124998993866
    """
    return key_of_hash(_city(text.encode()))


def key_of_hash(hashed: int) -> int:
    """The number of a category whose hash is known, as 32 bits with their sign."""
    low = hashed & 0xFFFFFFFF
    signed = low - 2**32 if low >> 31 else low
    return _COMBINING * (_COMBINING * (signed & _WORD) & _WORD) & _WORD


def tables_of(raw: Mapping[str, Any], columns: Sequence[int], subject: str) -> tuple[CategoryTable, ...]:
    """The tables of single columns.

    Args:
        raw: the model.
        columns: of every categorical feature, its position among all columns.
        subject: for errors.

    Raises:
        BadFile: a table that is none.
    """
    stored = raw.get("ctr_data") or {}
    if not isinstance(stored, dict):
        raise bad(subject, "tables in ctr_data", type(stored).__name__)
    found = (_table(name, table, columns, f"{subject}, ctr_data") for name, table in stored.items())
    return tuple(one for one in found if one is not None)


def _table(name: str, raw: Any, columns: Sequence[int], subject: str) -> CategoryTable | None:
    """One table; None: of several columns, or of another statistic."""
    described = json_of(name.encode(), subject)
    feature, kind = _single(field(described, "identifier", subject=subject)), described.get("type")
    if feature is None or kind not in ("Counter", "FeatureFreq", *_BY_CLASS):
        return None
    flat, stride = field(raw, "hash_map", subject=subject), field(raw, "hash_stride", subject=subject)
    if (
        not isinstance(flat, list)
        or not isinstance(stride, int)
        or stride not in (2, 3)
        or len(flat) % stride
    ):
        return None
    counted = {}
    for start in range(0, len(flat), stride):
        key = flat[start]
        if not isinstance(key, str) or not key.isdecimal() or len(key) > 20:
            raise bad(subject, "numbers of categories", key)
        if int(key) != _NOBODY:
            counted[int(key)] = tuple(whole_numbers(flat[start + 1 : start + stride], subject).tolist())
    total = raw.get("counter_denominator")
    return CategoryTable(
        column=_place(columns, feature, subject),
        counts=counted,
        by_class=kind in _BY_CLASS,
        largest=total if isinstance(total, int) else 0,
    )


def splits_of(
    raw: Mapping[str, Any], columns: Sequence[int], tables: Sequence[CategoryTable], subject: str
) -> dict[int, tuple[int, Category | None]]:
    """Column and question of every split by categories, by ``split_index``; None: it is not read.

    Splits are numbered over borders of numbers first, then single categories, then borders of statistics.

    Raises:
        BadFile: descriptions of features that are none.
    """
    described = field(raw, "features_info", subject=subject)
    floats = _list(described, "float_features", subject)
    number = sum(len(_list(one, "borders", subject)) for one in floats)
    found: dict[int, tuple[int, Category | None]] = {}
    for place, feature in enumerate(_list(described, "categorical_features", subject)):
        for value in _list(feature, "values", subject):
            if not isinstance(value, int):
                raise bad(subject, "hashes of categories", value)
            found[number] = columns[place], Category(values=frozenset({key_of_hash(value)}), right=True)
            number += 1
    for statistic in _list(described, "ctrs", subject):
        for border in numbers(_list(statistic, "borders", subject), subject).tolist():
            found[number] = _question(statistic, border, columns, tables, subject)
            number += 1
    return found


def _question(
    statistic: Mapping[str, Any],
    border: float,
    columns: Sequence[int],
    tables: Sequence[CategoryTable],
    subject: str,
) -> tuple[int, Category | None]:
    """Column and categories whose statistic is above a border."""
    elements = _list(statistic, "elements", subject)
    feature = _single(elements)
    column = min((_place(columns, f, subject) for f in _named(elements)), default=columns[0])
    counting = [t for t in tables if feature is not None and t.column == column and not t.by_class]
    if statistic.get("ctr_type") != "Counter" or len(counting) != 1:
        return column, None
    (table,) = counting
    terms = ("prior_numerator", "prior_denomerator", "shift", "scale")  # the file spells it so
    prior, weight, shift, scale = numbers([statistic.get(name) for name in terms], subject).tolist()

    def above(count: int) -> bool:
        return bool(((count + prior) / (table.largest + weight) + shift) * scale > border)

    # Whoever is in no table is counted 0 times: those who go where they do need not be listed.
    others = above(0)
    listed = frozenset(key for key, counts in table.counts.items() if above(counts[0]) != others)
    return column, Category(values=listed, right=not others)


def _single(elements: Any) -> int | None:
    """The categorical feature of a statistic of one column; None: of several."""
    named = _named(elements)
    return named[0] if len(named) == 1 and len(elements) == 1 else None


def _named(elements: Any) -> list[int]:
    """The categorical features of a statistic."""
    parts = elements if isinstance(elements, list) else []
    return [
        one["cat_feature_index"]
        for one in parts
        if isinstance(one, dict)
        and one.get("combination_element") == _VALUE
        and isinstance(one.get("cat_feature_index"), int)
    ]


def _place(columns: Sequence[int], feature: int, subject: str) -> int:
    if not 0 <= feature < len(columns):
        raise bad(subject, f"one of {len(columns)} categorical features", feature)
    return columns[feature]


def _list(table: Any, name: str, subject: str) -> list[Any]:
    """A list in a description; empty, if it has none."""
    held = table.get(name) if isinstance(table, dict) else None
    if held is not None and not isinstance(held, list):
        raise bad(subject, f"a list of {name}", type(held).__name__)
    return held or []


def _city(text: bytes) -> int:
    """CityHash64 of version 1.0.

    Source: Google, CityHash 1.0, written anew from its description; CatBoost numbers texts by it.
    """
    n = len(text)
    if n > 64:
        return _long(text)
    if n > 32:
        return _upper(text)
    if n > 16:
        a, b = _word(text, 0) * _K1 & _WORD, _word(text, 8)
        c, d = _word(text, n - 8) * _K2 & _WORD, _word(text, n - 16) * _K0 & _WORD
        left = _turn((a - b) & _WORD, 43) + _turn(c, 30) + d
        return _both(left & _WORD, (a + _turn(b ^ _K3, 20) - c + n) & _WORD)
    if n > 8:
        a, b = _word(text, 0), _word(text, n - 8)
        return _both(a, _turn((b + n) & _WORD, n)) ^ b
    if n >= 4:
        return _both((n + (_word(text, 0, 4) << 3)) & _WORD, _word(text, n - 4, 4))
    if n:
        y, z = text[0] + (text[n >> 1] << 8), n + (text[n - 1] << 2)
        return _fold((y * _K2 ^ z * _K3) & _WORD) * _K2 & _WORD
    return _K2


def _upper(text: bytes) -> int:
    """Of 33 to 64 bytes."""
    n = len(text)
    first = _sums(text, 0, (_word(text, 0) + (n + _word(text, n - 16)) * _K0) & _WORD, _word(text, 24))
    second = _sums(text, n - 32, (_word(text, 16) + _word(text, n - 32)) & _WORD, _word(text, n - 8))
    mixed = _fold(((first[0] + second[1]) * _K2 + (second[0] + first[1]) * _K0) & _WORD)
    return _fold((mixed * _K0 + first[1]) & _WORD) * _K2 & _WORD


def _sums(text: bytes, start: int, a: int, z: int) -> tuple[int, int]:
    """Two sums over the 24 bytes from ``start``."""
    b, c = _turn((a + z) & _WORD, 52), _turn(a, 37)
    a = (a + _word(text, start + 8)) & _WORD
    c += _turn(a, 7)
    a = (a + _word(text, start + 16)) & _WORD
    return (a + z) & _WORD, (b + _turn(a, 31) + c) & _WORD


def _long(text: bytes) -> int:
    """Of more than 64 bytes, in blocks of 64 from both ends."""
    n = len(text)
    x, y = _word(text, 0), _word(text, n - 16) ^ _K1
    z = _word(text, n - 56) ^ _K0
    v = _weak(text, n - 64, n, y)
    w = _weak(text, n - 32, n * _K1 & _WORD, _K0)
    z = (z + _fold(v[1]) * _K1) & _WORD
    x = _turn((z + x) & _WORD, 39) * _K1 & _WORD
    y = _turn(y, 33) * _K1 & _WORD
    for s in range(0, (n - 1) & ~63, 64):
        x = _turn((x + y + v[0] + _word(text, s + 16)) & _WORD, 37) * _K1 & _WORD
        y = _turn((y + v[1] + _word(text, s + 48)) & _WORD, 42) * _K1 & _WORD
        x, y = x ^ w[1], y ^ v[0]
        z = _turn(z ^ w[0], 33)
        v = _weak(text, s, v[1] * _K1 & _WORD, (x + w[0]) & _WORD)
        w = _weak(text, s + 32, (z + w[1]) & _WORD, y)
        z, x = x, z
    left = (_both(v[0], w[0]) + _fold(y) * _K1 + z) & _WORD
    return _both(left, (_both(v[1], w[1]) + x) & _WORD)


def _weak(text: bytes, start: int, a: int, b: int) -> tuple[int, int]:
    """Two sums over the 32 bytes from ``start``."""
    w, x, y, z = (_word(text, start + k) for k in (0, 8, 16, 24))
    a = (a + w) & _WORD
    b = _turn((b + a + z) & _WORD, 21)
    c = a
    a = (a + x + y) & _WORD
    b += _turn(a, 44)
    return (a + z) & _WORD, (b + c) & _WORD


def _word(text: bytes, start: int, size: int = 8) -> int:
    return int.from_bytes(text[start : start + size], "little")


def _turn(word: int, by: int) -> int:
    return (word >> by | word << (64 - by)) & _WORD


def _fold(word: int) -> int:
    return word ^ word >> 47


def _both(left: int, right: int) -> int:
    a = (left ^ right) * _MIXING & _WORD
    b = (right ^ (a ^ a >> 47)) * _MIXING & _WORD
    return (b ^ b >> 47) * _MIXING & _WORD
