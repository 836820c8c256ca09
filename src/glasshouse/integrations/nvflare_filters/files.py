"""Read filters off FLARE's configuration: a job's ``config_fed_client.json``, a site's ``privacy.json``.

Also a client configuration in YAML or a job's folder is common; these files are what FLARE itself writes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, final

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import check_size

Owner = Literal["job", "site"]
_FIX: Final = "give config_fed_client.json of a job, or local/privacy.json of a site"


@final
@dataclass(frozen=True, kw_only=True)
class Filter:
    """One configured filter on results.

    Attributes:
        path: class path, or a short name.
        arguments: of its constructor.
        owner: who wrote it: the uploaded job, or the site.
        scope: privacy scope of a site's filter; empty: of none.
        default: a site's filter: its scope is the one of jobs that name none.
        scopes: number of scopes in the file.
        components: arguments of the file's other components, by id, with their class path as ``path``.
    """

    path: str
    arguments: Mapping[str, Any]
    owner: Owner
    scope: str = ""
    default: bool = True
    scopes: int = 1
    components: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its class."""
        return self.path.rpartition(".")[2]


def read_filters(path: Path) -> list[Filter]:
    """Filters on task results in one file, in the order in which they act.

    Raises:
        BadFile: no JSON, neither kind of file, or a filter without a class path.
    """
    subject = f"configuration '{path}'"
    try:
        data = path.read_bytes()
        check_size(len(data), limits.TOML_BYTES, subject=subject)
        table = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(subject, needs="a JSON file", got=str(error), fix=_FIX) from error
    if not isinstance(table, dict) or not {"scopes", "task_result_filters", "executors"} & table.keys():
        raise BadFile(subject, needs="scopes, or executors and task_result_filters", got="neither", fix=_FIX)
    try:
        return list(_site_filters(table) if "scopes" in table else _job_filters(table))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(subject, needs="filters with a class path", got=str(error), fix=_FIX) from error


def _job_filters(table: Mapping[str, Any]) -> Iterator[Filter]:
    components = _components(table)
    for chain in table.get("task_result_filters", []):
        for one in chain.get("filters", []):
            yield Filter(path=_path(one), arguments=one.get("args") or {}, owner="job", components=components)


def _site_filters(table: Mapping[str, Any]) -> Iterator[Filter]:
    scopes: Sequence[Mapping[str, Any]] = table["scopes"]
    for scope in scopes:
        for one in scope.get("task_result_filters", []):
            yield Filter(
                path=_path(one),
                arguments=one.get("args") or {},
                owner="site",
                scope=scope["name"],
                default=scope["name"] == table.get("default_scope"),
                scopes=len(scopes),
                components=_components(table),
            )


def _components(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {one["id"]: {**(one.get("args") or {}), "path": _path(one)} for one in table.get("components", [])}


def _path(one: Mapping[str, Any]) -> str:
    return str(one.get("path") or one.get("class_path") or one["name"])
