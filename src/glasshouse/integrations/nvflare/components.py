"""What a FLARE job may build at a site."""

from collections.abc import Mapping, Sequence
from typing import Final

from glasshouse.integrations.nvflare.names import EXECUTOR, IN_PROCESS, OUTSIDE, TRAINER

COMPONENTS: Final = (EXECUTOR, TRAINER)
"""Classes that a job may build at a site by default: what trains; no widgets, filters, streamers."""


def refuse_component(config: object, place: str, allow: Sequence[str], *, in_process: bool) -> str:
    """Why a job may not build this component; empty: it may.

    Args:
        config: of the component, as the job's file has it.
        place: its path in the file.
        allow: class paths, or beginnings that end in a dot.
        in_process: uploaded scripts may run in the job's process.

    Examples:
        >>> refuse_component({"path": "mine.Late"}, "components", COMPONENTS, in_process=False)
        'component mine.Late is not among those that jobs may build here'
        >>> refuse_component({"path": COMPONENTS[1]}, "executors.0.executor", COMPONENTS, in_process=False)
        ''
    """
    if "filter" in place:
        return "a job's own filter acts after the site's"
    if not isinstance(config, Mapping):
        return "a component without a class path"
    # Short names are looked up by FLARE in its own packages; only whole paths can be compared.
    path = str(config.get("path") or config.get("class_path") or config.get("name") or "")
    if not any(path == one or (one.endswith(".") and path.startswith(one)) for one in allow):
        return f"component {path or 'without a path'} is not among those that jobs may build here"
    arguments = config.get("args") or {}
    mode = arguments.get("execution_mode", "") if isinstance(arguments, Mapping) else ""
    if not in_process and path == EXECUTOR and mode not in OUTSIDE:
        return "an uploaded script in the job's process could replace the site's filters"
    if not in_process and path.endswith(IN_PROCESS):
        return "an uploaded script in the job's process could replace the site's filters"
    return ""
