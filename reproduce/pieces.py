"""Pieces of a page of docs/results: what they are, what they cost, and how they run, one after the other."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Piece:
    """One command: ``audit`` and its arguments, ``glasshouse``, a module of ``reproduce``, or a dotted one.

    Attributes:
        command: words; ``{out}`` is the folder of the page, ``{before}`` the run of the audit before it.
        cost: CPU seconds of one core, above 0; of a piece that needs a GPU, seconds on the clock.
        estimated: from a shorter run or from ``glasshouse check``, not measured.
        gpu: needs a GPU; left out where there is none.
    """

    command: tuple[str, ...]
    cost: int
    estimated: bool = False
    gpu: bool = False


def about(cost: int, *command: str) -> Piece:
    """A piece whose cost is an estimate."""
    return Piece(command, cost, estimated=True)


def changed(*changes: str) -> tuple[str, ...]:
    """Options of an audit."""
    return tuple(word for change in changes for word in ("--set", change))


def price(piece: Piece) -> str:
    """What a piece costs, in words."""
    seconds = "seconds on a GPU, which it needs" if piece.gpu else "CPU seconds"
    return f"about {piece.cost:,} {seconds}{' (estimated)' if piece.estimated else ''}"


def total(pieces: Sequence[Piece]) -> str:
    """What all of them cost, in words."""
    cores = [piece for piece in pieces if not piece.gpu]
    estimated = sum(piece.cost for piece in cores if piece.estimated)
    words = f"about {sum(piece.cost for piece in cores):,} CPU seconds"
    words += f", {estimated:,} of them estimated" if estimated else ""
    on_gpu = sum(piece.cost for piece in pieces if piece.gpu)
    return words + (f", and {on_gpu:,} seconds on a GPU" if on_gpu else "")


def run_pieces(pieces: Sequence[Piece], place: Path) -> int:
    """Run what is missing in the folder of a page; the number of pieces that failed."""
    failed = 0
    place.mkdir(parents=True, exist_ok=True)
    print(f"{place.name}, {len(pieces)} pieces: {total(pieces)}", flush=True)
    for number, piece in enumerate(pieces, start=1):
        done = place / f"{number:02d}.json"
        if done.exists():
            continue
        print(f"== {number} of {len(pieces)}: {' '.join(piece.command)} ({price(piece)})", flush=True)
        if piece.gpu and shutil.which("nvidia-smi") is None:
            print("left out: there is no GPU", flush=True)
            continue
        status, facts = run_piece(piece, place, number)
        if status in (0, 1, 3):  # 1 and 3: a finished audit with a broken or an open limit
            done.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        failed += status not in (0, 1, 3)
    return failed


def run_piece(piece: Piece, place: Path, number: int) -> tuple[int, dict[str, object]]:
    """Run one and keep what it prints; its exit status, and what it took."""
    started, busy = time.time(), _children()
    words = words_of(piece, place, number)
    with (place / f"{number:02d}.txt").open("w", encoding="utf-8") as file:
        status = subprocess.run(
            words,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            check=False,
        ).returncode
    audited = audit_seconds(place / f"{number:02d}") if piece.command[0] == "audit" else None
    cpu = _children() - busy if audited is None else audited
    spent = {"seconds": round(time.time() - started), "cpu_seconds": round(cpu)}
    return status, {"command": piece.command, "status": status, **spent}


def words_of(piece: Piece, place: Path, number: int) -> list[str]:
    """The command line of a piece."""
    before = str(place / f"{number - 1:02d}")
    first, *rest = (word.replace("{out}", str(place)).replace("{before}", before) for word in piece.command)
    program = str(Path(sys.executable).with_name("glasshouse"))
    if first == "glasshouse":
        return [program, *rest]
    if first != "audit":
        return [sys.executable, "-m", module_of(first), *rest]
    run = place / f"{number:02d}"
    resume = ["--resume"] if (run / "scenario.given.toml").exists() else []
    return [program, "audit", *rest, "--out", str(run), *resume]


def module_of(name: str) -> str:
    """The module behind the first word of a command."""
    return name if "." in name else f"reproduce.{name}"


def audit_seconds(run: Path) -> float | None:
    """What an audit says that its pieces took in the session that ended it, in workers too; None: not ended.

    Workers come from a server of processes, for which the command does not wait.
    """
    manifest = run / "manifest.json"
    if not manifest.is_file():
        return None
    return float(sum(json.loads(manifest.read_text(encoding="utf-8"))["cpu_seconds"].values()))


def _children() -> float:
    """Processor time of all commands that ended so far, without processes that they did not wait for."""
    spent = os.times()
    return spent.children_user + spent.children_system
