"""``adult``: the UCI Adult census table, which its user supplies; the schema comes with the package."""

from pathlib import Path
from typing import Final

from glasshouse.data.base import DataSource
from glasshouse.data.fetch import ensure
from glasshouse.data.paths import require_existing
from glasshouse.data.tables.schema import read_schema
from glasshouse.data.tables.table import rows_of
from glasshouse.registry import Card

SCHEMA: Final = Path(__file__).with_suffix(".schema.toml")


@Card(
    summary="the Adult census table by name, 14 columns, target: income: adult.csv in GLASSHOUSE_DATA",
    source="Becker and Kohavi 1996, Adult, UCI Machine Learning Repository, CC BY 4.0",
    extra="tables",
    details={"modality": "row"},
)
def adult(where: str, *, resize: int | None = None) -> DataSource:
    """The rows of ``adult.csv``, from ``GLASSHOUSE_DATA`` or at ``where``; every fourth one is for tests.

    Raises:
        BadFile: the table is missing, lacks a column, or has a value that the schema does not allow.
        NotInstalled: pandas is missing.
    """
    del resize  # for pictures only
    place = where or ensure("adult").partition(":")[2]
    path = require_existing(place, name=f"adult:{place}")
    return rows_of(path, read_schema(SCHEMA, subject="data 'adult'"), name=f"adult ({path.name})")
