"""An attack that does something to the process that it runs in, and then reads the update honestly."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.plugins import Attack, Card, Claim, Needs, Rng, View


def cancel() -> None:
    raise asyncio.CancelledError


def interrupt() -> None:
    raise KeyboardInterrupt


def end() -> None:
    os._exit(0)


def lose_the_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)


def shout() -> None:
    os.write(1, b"\x1b[2J SHOUTED")
    print("x" * 10**6)


def close_streams() -> None:
    os.close(1)
    os.close(2)
    sys.stdout = sys.stderr = None


def replace_json() -> None:
    json.dumps = lambda *_, **__: "{}"


def hang() -> None:
    while True:
        with suppress(BaseException):
            time.sleep(60)


def wait_long() -> None:
    time.sleep(600)


DOES = {
    "cancels": cancel,
    "interrupts": interrupt,
    "ends its process": end,
    "loses the folder": lose_the_folder,
    "shouts": shout,
    "closes the streams": close_streams,
    "replaces json.dumps": replace_json,
}
SLOW = {"waits long": wait_long, "hangs": hang}
"""What ends by the limit of a call alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Hostile(Attack):
    """Does what ``how`` says in every call."""

    card: ClassVar[Card] = LinearInput.card
    needs: ClassVar[Needs] = LinearInput.needs
    budget: ClassVar[None] = None
    how: str = "shouts"

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        (DOES | SLOW)[self.how]()
        return LinearInput().run(view, rng=rng)
