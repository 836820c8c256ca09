"""The manifest of a run: versions, commit, seeds, device, hashes."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import glasshouse
from glasshouse.scenario.suite import Suite

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


def manifest(suite: Suite, *, device: str, jobs: int, executor: str) -> dict[str, Any]:
    """Facts about this run; timings, memory, disk and hashes are added by the runner.

    Args:
        suite: may name the person responsible for the run; else environment variable ``GLASSHOUSE_AUDITOR``.
        device: of attacks.
        jobs: number of worker processes.
        executor: registered name of the executor.
    """
    auditor = ", ".join(sorted({s.audit.auditor for s in suite.scenarios if s.audit.auditor}))
    return {
        "format": FORMAT,
        "suite": suite.name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "auditor": auditor or os.environ.get("GLASSHOUSE_AUDITOR", ""),
        "glasshouse": glasshouse.__version__,
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": dict(_installed()),
        "commit": commit(),
        "device": device,
        "executor": executor,
        "jobs": jobs,
        "torch_threads_per_job": 1,
        "subnormals": "flushed to zero in federations and attacks",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "seeds": {s.name: {"seed": s.seed, "attack_seed": s.attack_seed} for s in suite.scenarios},
    }


def _installed() -> Iterator[tuple[str, str]]:
    """The packages that are reported, with their versions; what is not installed is left out."""
    for name in REPORTED:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def commit() -> str:
    """Commit of the running source tree, with ``+dirty`` for uncommitted changes; empty without git."""
    folder = Path(glasshouse.__file__).parent
    commands = ["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "."]
    try:
        head, changes = (subprocess.check_output(c, cwd=folder, stderr=subprocess.PIPE) for c in commands)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.decode().strip() + ("+dirty" if changes.strip() else "")


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
