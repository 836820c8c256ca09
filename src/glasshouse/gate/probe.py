"""What an uploaded app could reach: ``SERVER GATE PID FILE...``; run as apps run, prints one JSON object.

Imports nothing of ours, so that it starts under any user that may read this file.
"""

import json
import os
import socket
import sys
from pathlib import Path


def main(server: str, gate: str, pid: int, files: list[str]) -> None:
    """Try to connect to both addresses (``HOST:PORT``), to signal ``pid`` and to read each of ``files``."""
    sys.stdout.write(
        json.dumps(
            {
                "connects": _connects(server),
                "reaches_gate": _connects(gate),
                "signals": _signals(pid),
                "reads": [name for name in files if os.access(Path(name), os.R_OK)],
            }
        )
    )


def _connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except OSError:
        return False


def _signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing: asks whether it could
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
