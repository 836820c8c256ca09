"""The site's own launcher of FLARE jobs: looks at a job before any of its code can run.

FLARE puts a job's ``custom`` folder on the path of the job's process, and imports from it (serialisers in
``custom/nvflare_decomposers``) before any component of the site is built. What judges a job inside that
process is too late. The client's parent process runs no uploaded code, and it starts the jobs: here a job is
judged as a whole, and its code is moved to a folder which only scripts in processes of their own see.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from glasshouse.errors import GlasshouseError
from glasshouse.gate.log import Log
from glasshouse.gate.message import Reason
from glasshouse.gate.policy import Policy, read_policy
from glasshouse.integrations.nvflare.components import COMPONENTS, refuse_component
from glasshouse.integrations.nvflare.names import (
    CLIENT_CONFIG,
    CUSTOM,
    SIGNATURES,
    ClientProcessJobLauncher,
    FLContext,
    FLContextKey,
    JobConstants,
    JobHandleSpec,
)

REFUSED: Final = "The site did not start this job."
MOVED: Final = "uploaded"
"""Where uploaded code lies while the job runs; no process of FLARE has it on its path."""
NOTE: Final = "glasshouse_app.txt"
"""File in a job's folder with the SHA-256 of its app, for the filters in the job's process."""
CONFIG: Final = f"{CLIENT_CONFIG}.json"
SCOPE: Final = "site"


class GateLauncher(ClientProcessJobLauncher):
    """Starts a job in a process of its own, if the site's policy lets it.

    Args:
        policy: path of the site's policy.
        allow: class paths that a job may build here; one that ends in a dot stands for all that begin so.
        in_process: leave uploaded code on the path of the job's process, which can then replace the filters.
    """

    def __init__(self, policy: str, allow: Sequence[str] = COMPONENTS, *, in_process: bool = False) -> None:
        super().__init__()
        self.policy, self.allow, self.in_process = policy, list(allow), in_process

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Judge the job, write the decision to the log, and start it.

        Raises:
            RuntimeError: in fixed words; the job may not run, or the decision could not be written.
        """
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        job = str(job_meta[JobConstants.JOB_ID])
        app = Path(workspace.get_app_dir(job))
        try:
            policy = read_policy(Path(self.policy))
            # A restart finds the code moved away: it is known by the digest that was noted when it passed.
            note = app.parent / NOTE
            digest = note.read_text() if note.exists() else app_digest(app)
            found = examine_job(
                app, job_meta, policy, allow=self.allow, in_process=self.in_process, digest=digest
            )
            _write_down(policy, job, digest, found)
            if not found and not note.exists():
                note.write_text(digest)
                if not self.in_process:
                    move_code(app)
        except (GlasshouseError, OSError, ValueError) as error:
            self.logger.error("the site's gate: %s", type(error).__name__)
            raise RuntimeError(REFUSED) from None
        # In fixed words: the reasons are the site's, and this text goes back to the server.
        if found:
            raise RuntimeError(REFUSED)
        return super().launch_job(job_meta, fl_ctx)


def examine_job(
    app: Path,
    meta: Mapping[str, Any],
    policy: Policy,
    *,
    allow: Sequence[str],
    in_process: bool,
    digest: str,
) -> list[Reason]:
    """Reasons not to start a job; none: it may run.

    Args:
        app: its folder at this site, with ``config`` and perhaps ``custom``.
        meta: of the job.
        policy: of the site.
        allow: class paths that it may build.
        in_process: uploaded scripts may run in its process.
        digest: SHA-256 of the app.
    """
    found = []
    if policy.apps and f"sha256:{digest}" not in policy.apps:
        found.append(Reason(rule="app", detail=digest[:12]))
    if meta.get("scope") not in (None, "", SCOPE):
        found.append(Reason(rule="scope"))
    if any(path.is_symlink() for path in app.rglob("*")):
        found.append(Reason(rule="job_files", detail="a link"))
    # FLARE takes the first of several formats; one that this check reads must be the only one.
    named = [path.name for path in (app / "config").glob(f"{CLIENT_CONFIG}*")]
    if named != [CONFIG]:
        return [*found, Reason(rule="job_config", detail=f"not {CONFIG} alone")]
    table = json.loads((app / "config" / CONFIG).read_text(encoding="utf-8"))
    for place, component in _components(table):
        if why := refuse_component(component, place, allow, in_process=in_process):
            found.append(Reason(rule="job_component", detail=why[:200]))
    return found


def app_digest(app: Path) -> str:
    """SHA-256 of all files of an app but the submitter's signatures; what ``apps`` of a policy lists."""
    digest = hashlib.sha256()
    for path in sorted(path for path in app.rglob("*") if path.is_file() and path.name not in SIGNATURES):
        name, data = path.relative_to(app).as_posix(), path.read_bytes()
        digest.update(f"{len(name)}:{name}{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def move_code(app: Path) -> None:
    """Take uploaded code off the path of the job's process, and point the scripts' commands to it."""
    if not (app / CUSTOM).exists():
        return
    (app / CUSTOM).replace(app / MOVED)
    path = app / "config" / CONFIG
    table = json.loads(path.read_text(encoding="utf-8"))
    for executor in table.get("executors", ()):
        arguments = executor.get("executor", {}).get("args") or {}
        command = arguments.get("command")
        if isinstance(command, str):
            arguments["command"] = " ".join(map(_moved, command.split(" ")))
        elif isinstance(command, list):
            arguments["command"] = [_moved(str(word)) for word in command]
    path.write_text(json.dumps(table, indent=2), encoding="utf-8")


def _moved(word: str) -> str:
    return f"{MOVED}/{word.removeprefix(f'{CUSTOM}/')}" if word.startswith(f"{CUSTOM}/") else word


def _components(table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Each component of a client's configuration with its place."""
    for number, executor in enumerate(table.get("executors") or ()):
        yield f"executors.{number}.executor", executor.get("executor")
    for number, component in enumerate(table.get("components") or ()):
        yield f"components.{number}", component
    for kind in ("task_data_filters", "task_result_filters"):
        for chain in table.get(kind) or ():
            for component in chain.get("filters") or ():
                yield f"{kind}.filters", component


def _write_down(policy: Policy, job: str, digest: str, found: Sequence[Reason]) -> None:
    """One signed line for a decision on a job; a job that runs holds the log, so this waits for none."""
    log = Log(policy.folder / policy.log.file, policy.folder / policy.log.key)
    try:
        log.add(
            {
                "event": "in",
                "action": "refused" if found else "passed",
                "rules": [reason.rule for reason in found],
                "details": [reason.detail for reason in found],
                "bytes": 0,
                "kind": "job",
                "run": job,
                "node": policy.site,
                "round": "",
                "app": digest,
            }
        )
    finally:
        log.close()
