"""Updates are searched for the site's own examples before they leave, in a process of its own.

It runs the site's loader (``module:function`` in the policy's folder, returning the network, inputs and
labels), not the uploaded app. It has a time limit; what cannot be checked in time does not leave.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

from glasshouse.gate.apart.limits import is_limited, lift
from glasshouse.gate.message import Arrays, Reason
from glasshouse.gate.policy import Preflight

_MODULE: Final = "glasshouse.gate.preflight.process"


@final
@dataclass(frozen=True)
class Preflighter:
    """A check of the tensors as they would be sent.

    Attributes:
        rule: of the policy.
        folder: in which the site's loader is found.
    """

    rule: Preflight
    folder: Path

    def __call__(self, arrays: Arrays, received: Arrays) -> list[Reason]:
        """Reasons to refuse; none: at most ``most`` examples were recognised in the update."""
        with tempfile.TemporaryDirectory(prefix="gate-") as name:
            place = Path(name)  # of this user only, as tempfile makes it
            for file, tensors in (("sent", arrays), ("received", received)):
                np.savez(place / f"{file}.npz", **dict(tensors))  # type: ignore[arg-type]  # names of tensors
            command = [sys.executable, "-m", _MODULE, name, self.rule.loader]
            try:
                result = subprocess.run(
                    command,
                    cwd=self.folder,
                    capture_output=True,
                    timeout=self.rule.seconds,
                    check=True,
                    preexec_fn=lift if is_limited() else None,
                )
                found = json.loads(result.stdout)
            except subprocess.TimeoutExpired:
                return [Reason(rule="preflight_unclear", detail=f"not done in {self.rule.seconds:g} s")]
            except (subprocess.CalledProcessError, ValueError):
                return [Reason(rule="preflight_unclear", detail="the check failed")]
        if not found["controlled"]:
            return [Reason(rule="preflight_unclear", detail="its control failed")]
        if found["recognised"] > self.rule.most:
            return [Reason(rule="preflight", detail=f"{found['recognised']} of {found['examples']} examples")]
        return []
