"""Rows of docs/results/nvflare.md: ``python -m reproduce.flare job|filters|poc --out FOLDER``.

``job`` runs the job of examples/nvflare-privacy-audit in FLARE's simulator, captured, and audits what its
server saw. ``filters`` runs the tests that hold FLARE's filters and a site's policy to what they declare, and
``poc`` those that capture jobs of a model, of statistics and of trees in a POC (tensorboard installed).
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "nvflare-privacy-audit"
TESTS = ("tests/integrations/test_nvflare_filters.py", "tests/integrations/test_nvflare_site.py")
DEPLOYED = ("-m", "slow", "tests/integrations/test_nvflare_poc.py")
OPEN = (0, 1, 3)
"""Exit codes of an audit that ended."""


def job(out: Path) -> int:
    """The job, its capture put together, and the audit; 0 unless one of the three fails."""
    run = (sys.executable, "-m", "glasshouse")
    for words in (
        (sys.executable, str(EXAMPLE / "job.py"), "--out", str(out)),
        (*run, "collect", str(out / "capture"), str(out / "truth")),
        (
            *run,
            "audit",
            str(EXAMPLE / "audit.toml"),
            "--captured",
            str(out / "capture"),
            "--out",
            str(out / "audit"),
        ),
    ):
        if (status := subprocess.run(words, check=False).returncode) not in OPEN:
            return status
    return 0


def filters(_: Path) -> int:
    """The tests' own words."""
    return subprocess.run((sys.executable, "-m", "pytest", "-q", *TESTS), cwd=ROOT, check=False).returncode


def poc(_: Path) -> int:
    """Three jobs, a server and two or three sites each."""
    return subprocess.run((sys.executable, "-m", "pytest", "-q", *DEPLOYED), cwd=ROOT, check=False).returncode


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["job", "filters", "poc"])
    parser.add_argument("--out", type=Path, default=Path("runs/flare"))
    arguments = parser.parse_args()
    return {"job": job, "filters": filters, "poc": poc}[arguments.part](arguments.out)


if __name__ == "__main__":
    sys.exit(main())
