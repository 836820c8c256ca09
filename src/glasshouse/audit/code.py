"""The user's own code in a run: hashed when the run starts, compared when it resumes."""

from pathlib import Path
from typing import Final

from glasshouse.audit.scoring.controls.sources import package_digest
from glasshouse.errors import BadFile
from glasshouse.models.memory import PREFIX
from glasshouse.registry import load_model
from glasshouse.scenario.axes import cells
from glasshouse.scenario.suite import Suite
from glasshouse.store import read_json, write_json

_FILE: Final = "code.json"


def own_models(suite: Suite) -> set[str]:
    """Names of the suite's models that are the user's own: ``module:factory``, or in memory."""
    scenarios = [cell.scenario for scenario in suite.scenarios for cell in cells(scenario)]
    models = [m for s in scenarios for m in (s.model, *s.federation.client_models)]
    return {model.name for model in models if ":" in model.name}


def lives_in_memory(suite: Suite) -> bool:
    """Whether a model of the suite was passed as an object, which only this process has."""
    return any(name.startswith(PREFIX) for name in own_models(suite))


def record_code(suite: Suite, out: Path) -> None:
    """Write ``code.json`` with a hash of the package of each ``module:factory``, or compare an existing one.

    The hash covers all source files of the module's package, or the file of a module outside any package,
    but nothing imported from elsewhere. The name of a network in memory contains its hash.

    Raises:
        BadFile: a package has changed since the run started.
    """
    packages = set()
    for name in own_models(suite):
        if not name.startswith(PREFIX):
            load_model(name)
            packages.add(name.partition(":")[0].partition(".")[0])
    now = {package: package_digest(package) for package in sorted(packages)}
    path = out / _FILE
    before = read_json(path) if path.is_file() else now
    if before != now:
        changed = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
        raise BadFile(
            f"run directory '{out}'",
            needs="the code that the run began with",
            got=f"source files of {', '.join(changed)} that were changed since",
            fix="undo the change to go on with this run, or choose another --out",
        )
    if now:
        write_json(path, now)
