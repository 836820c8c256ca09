"""The process in which a replay runs its attacks: ``python -m glasshouse.audit.replay_process ORDERS``.

It confines itself (:mod:`glasshouse.audit.namespace`) before it imports torch and the plug-ins. ORDERS is a
file that ``replay`` wrote.
"""

import os
import pickle
import sys
from pathlib import Path
from typing import Any

from glasshouse.audit.namespace import confine, needed_places

NO_NAMESPACE = 75


def main(orders: Path) -> int:
    """Run the tasks of ``orders`` one after another; return the exit status.

    An error of this package is written beside the orders, for the process that started this one.
    """
    raw = pickle.loads(orders.read_bytes())  # noqa: S301 - written by the process that started this one
    if not _confine(raw):
        return NO_NAMESPACE
    # Imported late: these modules may start threads.
    from glasshouse.audit.attacking.call import run_piece  # noqa: PLC0415
    from glasshouse.errors import GlasshouseError  # noqa: PLC0415
    from glasshouse.process import prepare_process  # noqa: PLC0415

    prepare_process()
    try:
        for piece in pickle.loads(raw["pieces"]):  # noqa: S301 - as above
            run_piece(piece)
    except GlasshouseError as error:
        orders.with_suffix(".error").write_bytes(pickle.dumps(error))
        return 1
    return 0


def _confine(orders: dict[str, Any]) -> bool:
    """Seal this process, if so ordered, and go to its working folder; False: the system does not allow it."""
    if orders["seal"]:
        try:
            confine(
                stage=Path(orders["stage"]),
                hide=[Path(folder) for folder in orders["hide"]],
                show=[*map(Path, orders["show"]), *needed_places()],
                write=[Path(folder) for folder in orders["write"]],
            )
        except OSError:
            return False
    os.chdir(orders["working_folder"])
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
