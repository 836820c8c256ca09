"""Is there a rule of the network that lets only the gate talk to the server? Tested, as far as it can be.

The gate starts a probe in the way in which uploaded apps run (``[egress] probe``). The probe must fail to
reach the server, while the same probe started as the gate itself must reach it (else a dead server would look
like a rule). It must also be unable to speak to the gate, which would pass on its headers, to signal it, and
to read its key.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

from glasshouse.errors import BadValue
from glasshouse.gate import probe
from glasshouse.gate.policy import Policy

SECONDS: Final = 20
FAULTS: Final = {
    "reaches_gate": "apps can speak to the gate in a node's place",
    "signals": "apps can signal the gate",
    "reads": "apps can read the gate's key or log",
}


@final
@dataclass(frozen=True, kw_only=True)
class Egress:
    """What was seen of the rule.

    Attributes:
        state: ``closed``: apps cannot reach the server; ``open``: they can; ``untested``.
        sentence: why.
        faults: what apps can do to the gate itself.
        fix: what to do about what was not tested; empty: set the rule.
    """

    state: Literal["closed", "open", "untested"]
    sentence: str
    faults: tuple[str, ...] = ()
    fix: str = ""

    @property
    def grade(self) -> Literal["A", "B"]:
        """A: uploaded code can neither go around the gate nor touch it, as far as was tested."""
        return "A" if self.state == "closed" and not self.faults else "B"


Address = tuple[str, int]


def check_egress(policy: Policy, server: Address, gate: Address) -> Egress:
    """Start the probe as apps run, and as the gate.

    Args:
        policy: of the site; ``[egress] probe`` is the command prefix.
        server: host and port of the server.
        gate: host and port at which nodes will find the gate; nothing may listen there yet.

    Raises:
        BadValue: the gate's own address is in use.
    """
    if not policy.egress.probe:
        return Egress(state="untested", sentence="the policy does not say how apps run ([egress] probe)")
    files = [str(policy.folder / policy.log.key), str(policy.folder / policy.log.file)]
    arguments = [f"{server[0]}:{server[1]}", f"{gate[0]}:{gate[1]}", str(os.getpid()), *files]
    with _listening(gate):
        control, tried = _run((), arguments), _run(policy.egress.probe, arguments)
    if control is None or not control["connects"]:
        fix = f"start the server at {server[0]}:{server[1]}, or name another --to"
        return Egress(state="untested", sentence="the gate itself did not reach the server", fix=fix)
    if tried is None:
        fix = "correct [egress] probe, the command under which apps run"
        return Egress(state="untested", sentence="the probe did not run as apps run", fix=fix)
    faults = [sentence for fact, sentence in FAULTS.items() if tried[fact]]
    if tried["connects"]:
        return Egress(state="open", sentence="apps can reach the server past the gate", faults=tuple(faults))
    return Egress(
        state="closed", sentence="apps did not reach the server, the gate did", faults=tuple(faults)
    )


def _listening(address: Address) -> socket.socket:
    """A socket in the gate's place, so that the probe can tell whether apps would reach it."""
    try:
        return socket.create_server(address)
    except OSError as error:
        fix = "stop what listens there, or name another --listen"
        raise BadValue(
            "the gate", needs=f"{address[0]}:{address[1]} free", got=str(error), fix=fix
        ) from error


def _run(prefix: Sequence[str], arguments: Sequence[str]) -> dict[str, Any] | None:
    """The probe's answer; None if it did not run."""
    command = [*prefix, sys.executable, "-I", str(Path(probe.__file__)), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
        answer = json.loads(result.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None
