"""The conditions under which every test runs: one thread, no network, an empty cache, no silent skip in CI.

A test that lacks something skips with a reason. On a developer's machine that is fine; where
``GLASSHOUSE_CI`` is set, everything but the ``vision`` extra, a GPU and the real data sets is there,
so any other skip is a failure.
"""

import os
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

# Before anything imports torch: the OpenMP runtime reads these once, and child processes inherit them.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["GLASSHOUSE_OFFLINE"] = "1"
if (REAL_DATA := Path(__file__).resolve().parent.parent / "shared/data").is_dir():
    os.environ.setdefault("GLASSHOUSE_DATA", str(REAL_DATA))

import pytest  # noqa: E402 — the variables come first
from hypothesis import settings  # noqa: E402
from xdist.remote import Producer  # noqa: E402
from xdist.scheduler import LoadScopeScheduling  # noqa: E402

collect_ignore = [  # jobs of their own, with modules beside each other
    f"tests/integrations/{job}" for job in ("flare_job", "flare_trees", "lightning_job")
]
IN_CI = bool(os.environ.get("GLASSHOUSE_CI"))
MAY_SKIP_IN_CI = re.compile(r"shared/data|torchvision|'vision'|\bCUDA\b|\bGPU\b|\bMPS\b")
INTEGRATION = ("audits", "browser", "first_hour", "guard", "hostile", "integrations", "plugins", "wall")
"""Folders whose tests run whole audits, checks of models, commands, deployments, packages or pages: between a
unit and a slow test."""
TESTS = Path(__file__).resolve().parent / "tests"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Timing on a shared machine says nothing about the code; in CI the same examples run each time.
settings.register_profile("glasshouse", deadline=None, max_examples=50, derandomize=IN_CI, print_blob=True)
settings.load_profile("glasshouse")


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a cache of its own, shared by its worker processes."""
    if not hasattr(config, "workerinput"):
        os.environ["GLASSHOUSE_CACHE"] = tempfile.mkdtemp(prefix="glasshouse-tests-")
        os.environ["GLASSHOUSE_REGISTER"] = os.path.join(os.environ["GLASSHOUSE_CACHE"], "register.jsonl")  # noqa: PTH118


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove that cache."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["GLASSHOUSE_CACHE"], ignore_errors=True)


class ByFile(LoadScopeScheduling):
    """Give a process what shares fixtures: a file, or the folder whose audits last the session."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.split("::", maxsplit=1)[0])
        return str(file.parent if file.parent.name == "wall" else file)


@pytest.hookimpl(optionalhook=True)  # mutmut runs without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Schedule by file; xdist's groups have no effect under pytest 9.2."""
    return ByFile(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders without a chosen test, and doctests that need torchvision where it is missing."""
    # Importing a file only to deselect it takes as long as a minute of tests.
    if config.getoption("markexpr") and _is_deselected(collection_path, config.getoption("markexpr")):
        return True
    # Doctests import their module.
    if collection_path.suffix != ".py" or "src" not in collection_path.parts or find_spec("torchvision"):
        return None
    needs_it = re.search(r"^\s*(import|from) torchvision", collection_path.read_text(), re.MULTILINE)
    return True if needs_it else None


def _is_deselected(path: Path, expression: str) -> bool:
    """Whether a folder has no test for an expression like ``integration and not slow``."""
    terms = expression.split(" and ")
    if not path.is_dir() or path.parent not in (TESTS, TESTS.parent):
        return False
    if path == TESTS.parent / "src":
        return "integration" in terms
    is_integration = path.name in INTEGRATION
    return path.parent == TESTS and (("not integration" if is_integration else "integration") in terms)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the folders above, before they are chosen by marker."""
    for item in items:
        if item.path.parent.parent == TESTS and item.path.parent.name in INTEGRATION:
            item.add_marker("integration")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Turn an unexpected skip of a test into a failure, in CI."""
    report = yield
    _refuse_skip(report, item.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """The same for a file that is skipped as a whole (``pytest.importorskip`` at its top)."""
    report = yield
    _refuse_skip(report, collector.nodeid)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport, where: str) -> None:
    if not (IN_CI and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not MAY_SKIP_IN_CI.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{where}: skipped in CI ({reason}). Install what it needs in .ci/run."


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; the test skips where there is none. Mark such tests ``browser``."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
