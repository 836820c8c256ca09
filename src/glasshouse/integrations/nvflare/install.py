"""Put the gate into a FLARE site's own configuration, or compare what stands there.

    python -m glasshouse.integrations.nvflare.install SITE_FOLDER --policy gate.toml [--check]

It writes ``local/privacy.json`` (one scope, which is the default) and ``local/resources.json`` (the component
that refuses jobs; log streaming off), and prints what it changed. Exit code 1 with ``--check``: they differ.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from glasshouse.errors import BadFile, GlasshouseError
from glasshouse.gate.policy import read_policy
from glasshouse.integrations.nvflare.site import COMPONENTS

PRIVACY: Final = "privacy.json"
RESOURCES: Final = "resources.json"
_SITE: Final = "glasshouse.integrations.nvflare.site"
_JOBS: Final = "glasshouse_gate_jobs"
_STREAMERS: Final = ("site_log_streamer.", "job_log_streamer.", "SiteLogStreamer", "JobLogStreamer")
_LINES: Final = {
    "A": "grade A: no uploaded script runs in the process of a job; GateJobs refuses those that would",
    "B": "grade B: uploaded scripts share the filters' process and can replace them: a filter, not a gate",
}
OUTSIDE: Final = (
    "outside any grade: fed events, auxiliary messages, streams and peer-to-peer results, which meet no "
    "result filter; and connections that a job opens itself, unless a rule of the network forbids them"
)


def planned(site: Path, policy: Path, *, in_process: bool) -> dict[Path, dict[str, Any]]:
    """The two files as they must be, by path.

    Args:
        site: a site's folder, with ``local``.
        policy: of the site.
        in_process: let uploaded scripts run in the job's process (grade B).

    Raises:
        BadFile: there is no ``local/resources.json`` (or ``.default``), or the policy is wrong.
    """
    read_policy(policy)
    local = site / "local"
    arguments = {"policy": str(policy.absolute())}
    scope = {
        "name": "site",
        "properties": {},
        "task_data_filters": [{"path": f"{_SITE}.GateIn", "args": arguments}],
        "task_result_filters": [{"path": f"{_SITE}.GateOut", "args": arguments}],
    }
    resources = _resources(local)
    others = [one for one in resources.get("components", []) if one.get("id") != _JOBS and not _streams(one)]
    jobs = {"allow": list(COMPONENTS), "in_process": in_process}
    guard = {"id": _JOBS, "path": f"{_SITE}.GateJobs", "args": jobs}
    return {
        local / PRIVACY: {"scopes": [scope], "default_scope": "site"},
        local / RESOURCES: {**resources, "allow_log_streaming": False, "components": [*others, guard]},
    }


def differences(plan: dict[Path, dict[str, Any]]) -> list[Path]:
    """The files that are not as planned."""
    return [path for path, table in plan.items() if _read(path) != table]


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, or compare with ``--check``."""
    parser = ArgumentParser(prog="glasshouse.integrations.nvflare.install")
    parser.add_argument("site", type=Path)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--in-process", action="store_true", help="allow scripts in the job's process")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args(arguments)
    try:
        plan = planned(options.site, options.policy, in_process=options.in_process)
    except GlasshouseError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    changed = differences(plan)
    if not options.check:
        for path in changed:
            path.write_text(json.dumps(plan[path], indent=2) + "\n", encoding="utf-8")
    word = "differs" if options.check else "written"
    lines = [f"{word}: {path}" for path in changed] or ["both files are as they must be"]
    sys.stdout.write("\n".join([*lines, _LINES["B" if options.in_process else "A"], OUTSIDE]) + "\n")
    return 1 if options.check and changed else 0


def _resources(local: Path) -> dict[str, Any]:
    """The site's resources; FLARE reads the ``.default`` file where the site has none of its own."""
    for name in (RESOURCES, f"{RESOURCES}.default"):
        table = _read(local / name)
        if table is not None:
            return table
    raise BadFile(
        f"site '{local.parent}'", needs=f"local/{RESOURCES} or its .default", got="neither",
        fix="give the folder that contains local/ and startup/",
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any] | None:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return table if isinstance(table, dict) else None


def _streams(component: dict[str, Any]) -> bool:
    """Whether it sends logs, in which error texts of uploaded code stand."""
    return any(word in str(component.get("path", component.get("name", ""))) for word in _STREAMERS)


if __name__ == "__main__":
    sys.exit(main())
