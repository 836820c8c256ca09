"""Put the gate into a FLARE site's own configuration, or compare what stands there.

``glasshouse gate install SITE_FOLDER --framework nvflare --policy site.toml [--check]`` writes three files of
the site's ``local`` folder and says what it changed.

Grades. B, as installed: a job's filters, event handlers, serialisers and scripts never run in the process of
the site's filters; but its scripts run as the same user, who can open connections of his own and read the key
and the log. C, with ``in_process``: uploaded code can replace the filters. There is no grade A: FLARE starts
scripts as its own user, and gives them a file that no other user may read.
"""

import json
from pathlib import Path
from typing import Any, Final

from glasshouse.errors import BadFile
from glasshouse.gate.policy import read_policy
from glasshouse.integrations.nvflare.components import COMPONENTS
from glasshouse.integrations.nvflare.names import (
    AUTHORIZATION,
    LAUNCHER,
    PRIVACY,
    RESOURCES,
    RIGHTS,
    SHELL,
    STREAMERS,
)

_PACKAGE: Final = "glasshouse.integrations.nvflare"
_JOBS: Final = "glasshouse_gate_jobs"
_EVENTS: Final = "glasshouse_gate_events"
_LAUNCHER: Final = "glasshouse_gate_launcher"
LINES: Final = {
    "B": "grade B: no uploaded code runs in the process of the site's filters; its scripts run as this user, "
    "who can open connections of his own and read the key and the log",
    "C": "grade C: uploaded scripts share the filters' process and can replace them: a filter, not a gate",
}
OUTSIDE: Final = (
    "outside any grade: auxiliary messages, streams and peer-to-peer results of components that the site "
    "allows, and what a script sends over FLARE's own network by itself, which meet no result filter"
)


def planned(site: Path, policy: Path, *, in_process: bool, observe: bool = False) -> dict[Path, Any]:
    """The three files as they must be, by path.

    Args:
        site: a site's folder, with ``local``.
        policy: of the site.
        in_process: let uploaded scripts run in the job's process (grade C).
        observe: the filters only write what they would have done.

    Raises:
        BadFile: a file of the site is missing, the policy is wrong, or jobs are not started as processes.
    """
    read_policy(policy)
    local = site / "local"
    arguments = {"policy": str(policy.absolute())}
    filters = {**arguments, "in_process": in_process, "observe": observe}
    scope = {
        "name": "site",
        "properties": {},
        "task_data_filters": [{"path": f"{_PACKAGE}.site.GateIn", "args": filters}],
        "task_result_filters": [{"path": f"{_PACKAGE}.site.GateOut", "args": filters}],
    }
    events = {"id": _EVENTS, "path": f"{_PACKAGE}.site.GateEvents", "args": filters}
    resources = _configured(local, RESOURCES)
    kept = [one for one in resources.get("components", []) if not _replaced(one)]
    if others := [_path(one) for one in kept if "JobLauncher" in _path(one)]:
        raise BadFile(
            f"site '{site}'", needs=f"{LAUNCHER}, which the gate replaces", got=", ".join(others),
            fix="jobs in containers meet the container's own rules; the gate does not start them",
        )  # fmt: skip
    jobs = {"allow": list(COMPONENTS), "in_process": in_process}
    ours = [
        {"id": _LAUNCHER, "path": f"{_PACKAGE}.launch.GateLauncher", "args": {**arguments, **jobs}},
        {"id": _JOBS, "path": f"{_PACKAGE}.site.GateJobs", "args": jobs},
    ]
    rights = _configured(local, AUTHORIZATION)
    permissions = {role: _without_shell(given) for role, given in rights.get("permissions", {}).items()}
    return {
        local / PRIVACY: {"scopes": [scope], "default_scope": "site", "components": [events]},
        local / RESOURCES: {**resources, "allow_log_streaming": False, "components": [*kept, *ours]},
        local / AUTHORIZATION: {**rights, "permissions": permissions},
    }


def differences(plan: dict[Path, dict[str, Any]]) -> list[Path]:
    """The files that are not as planned."""
    return [path for path, table in plan.items() if _read(path) != table]


def install(site: Path, policy: Path, *, in_process: bool, observe: bool, check: bool) -> tuple[bool, str]:
    """Write the files, or only compare them.

    Args:
        site: a site's folder, with ``local``.
        policy: of the site.
        in_process: let uploaded scripts run in the job's process (grade C).
        observe: the filters only write what they would have done.
        check: write nothing.

    Returns:
        Whether a file differed, and what to tell the administrator.
    """
    plan = planned(site, policy, in_process=in_process, observe=observe)
    changed = differences(plan)
    if not check:
        for path in changed:
            path.write_text(json.dumps(plan[path], indent=2) + "\n", encoding="utf-8")
    word = "differs" if check else "written"
    lines = [f"{word}: {path}" for path in changed] or ["all three files are as they must be"]
    return bool(changed), "\n".join([*lines, LINES["C" if in_process else "B"], OUTSIDE])


def _configured(local: Path, name: str) -> dict[str, Any]:
    """A file of the site; FLARE reads the ``.default`` one where the site has none of its own."""
    for one in (name, f"{name}.default"):
        table = _read(local / one)
        if table is not None:
            return table
    raise BadFile(
        f"site '{local.parent}'", needs=f"local/{name} or its .default", got="neither",
        fix="give the folder that contains local/ and startup/",
    )  # fmt: skip


def _without_shell(given: object) -> object:
    """A role's rights without the commands that read a site's files from the server's console.

    With ``cat``, ``head``, ``tail`` and ``grep`` a server's administrator reads what a script wrote there.
    """
    if given == "any":
        return {**dict.fromkeys(RIGHTS, "any"), SHELL: "none"}
    return {**given, SHELL: "none"} if isinstance(given, dict) else given


def _read(path: Path) -> dict[str, Any] | None:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return table if isinstance(table, dict) else None


def _replaced(component: dict[str, Any]) -> bool:
    """Whether the gate puts its own in this one's place, or leaves it out: launcher, streamers of logs.

    Error texts of uploaded code stand in logs.
    """
    path = _path(component)
    ours = component.get("id") in (_JOBS, _LAUNCHER)
    return ours or path.endswith(LAUNCHER) or any(word in path for word in STREAMERS)


def _path(component: dict[str, Any]) -> str:
    return str(component.get("path", component.get("name", "")))
