"""The manifest of a run: versions, commit, seeds, device, hashes."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

import glasshouse

FORMAT = 1
REPORTED = (
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "torchmetrics",
    "opacus",
    "dp-accounting",
    "safetensors",
    "pydantic",
)


def manifest(
    *, suite: str, auditor: str, seeds: Mapping[str, tuple[int, int]], device: str, jobs: int, executor: str
) -> dict[str, Any]:
    """Facts about this run; timings, memory, disk and hashes are added by the runner.

    Args:
        suite: its name.
        auditor: person responsible for the run; empty: environment variable ``GLASSHOUSE_AUDITOR``.
        seeds: scenario → (seed, attack seed).
        device: of attacks.
        jobs: number of worker processes.
        executor: registered name of the executor.
    """
    installed = {d.metadata["Name"].lower(): d.version for d in distributions()}
    return {
        "format": FORMAT,
        "suite": suite,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "auditor": auditor or os.environ.get("GLASSHOUSE_AUDITOR", ""),
        "glasshouse": glasshouse.__version__,
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: installed[name] for name in REPORTED if name in installed},
        "commit": commit(),
        "device": device,
        "executor": executor,
        "jobs": jobs,
        "torch_threads_per_job": 1,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "seeds": {name: {"seed": s, "attack_seed": a} for name, (s, a) in seeds.items()},
    }


def commit() -> str:
    """Commit of the running source tree, with ``+dirty`` for uncommitted changes; empty without git."""
    folder = Path(glasshouse.__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        )
        changes = subprocess.run(
            ["git", "status", "--porcelain", "."], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+dirty" if changes.stdout.strip() else "")


def tree_hash(folder: Path) -> str:
    """SHA-256 over names and contents of all files below ``folder``; empty when there is none."""
    total = hashlib.sha256()
    files = file_hashes(folder)
    for name, digest in files.items():
        total.update(name.encode())
        total.update(bytes.fromhex(digest))
    return total.hexdigest() if files else ""


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every regular file below ``folder``, by relative path, sorted."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    hashes = {}
    for path in files:
        with path.open("rb") as stream:
            hashes[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashes
