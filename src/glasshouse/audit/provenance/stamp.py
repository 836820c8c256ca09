"""What an audit is about, written down before anything runs: ``stamp.json``, and a line of the register.

The stamp holds the hashes of scenario, policy and code. It is written before the simulation makes any truth,
and the register holds its hash, so that neither can be chosen afterwards without a trace.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

import glasshouse
from glasshouse.audit.provenance.manifest import commit
from glasshouse.disk import write_text
from glasshouse.errors import BadFile
from glasshouse.evidence import digests, register
from glasshouse.evidence.plans import planned_of
from glasshouse.evidence.statement import read_stamp
from glasshouse.outside.text import as_json
from glasshouse.scenario.axes import plain
from glasshouse.scenario.suite import Suite

STAMP: Final = "stamp.json"
FORMAT: Final = 1


@final
@dataclass(frozen=True, kw_only=True)
class Stamp:
    """An audit that has begun: its name in the register, and the register; None: none is kept."""

    audit: str
    file: Path | None

    def close(self, run: Path) -> None:
        """Register that the audit ended, with its result, where the register still says that it began."""
        if self.file is not None and self.facts()["kept"]:
            register.append_end(self.file, self.audit, digest=digests.of_file(run / "result.json"))

    def facts(self) -> dict[str, Any]:
        """The manifest's entry: which of how many audits of each scenario this is."""
        lines = [] if self.file is None else register.read_register(self.file)
        # A register that was removed or exchanged meanwhile counts nothing.
        if self.file is None or not any(line.audit == self.audit and line.scenarios for line in lines):
            return {"kept": False, "audit": self.audit}
        facts = {"kept": True, "audit": self.audit, "file": self.file.name, "head": lines[-1].hash}
        return {**facts, "scenarios": register.standing(lines, self.audit)}


def stamp(suite: Suite, run: Path, file: Path | None) -> Stamp:
    """Write ``stamp.json`` into the run's folder and a line into the register ``file``.

    A run that goes on keeps its stamp.

    Raises:
        BadFile: the register was changed or cannot be written, or the run began with another scenario.
        DiskFull: no space left.
    """
    planned = [planned_of(plain(scenario)) for scenario in suite.scenarios]
    path = run / STAMP
    if path.is_file():
        audit = _audit_of(path, planned)
    else:
        audit = register.new_audit()
        write_text(path, as_json(_content(audit, planned), indent=1) + "\n")
    if file is not None:
        register.append_begin(file, planned, digest=digests.of_file(path), audit=audit)
    return Stamp(audit=audit, file=file)


def _content(audit: str, planned: list[register.Planned]) -> Mapping[str, Any]:
    source = digests.of_source(Path(glasshouse.__file__).parent)
    code = {"glasshouse": glasshouse.__version__, "commit": commit(), "source": source}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    scenarios = [asdict(one) for one in planned]
    return {"format": FORMAT, "audit": audit, "when": now, "scenarios": scenarios, "code": code}


def _audit_of(path: Path, planned: list[register.Planned]) -> str:
    """The name of the audit in an existing stamp, if it is about the same scenarios."""
    stamp = read_stamp(path.parent)
    if [one.model_dump() for one in stamp.scenarios] != [asdict(one) for one in planned]:
        raise BadFile(
            f"file '{path}'",
            needs="the stamp of this very scenario, policy and seeds",
            got="another one",
            fix="choose another --out, or --resume the scenario that was started there",
        )
    return stamp.audit
