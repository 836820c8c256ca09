"""Audits: simulate, attack, score and report."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from glasshouse.api.arrays import Arrays, named_arrays
from glasshouse.api.run import Run
from glasshouse.api.scenario import Asked, ask, in_memory, unasked
from glasshouse.audit.run import audit as audit_suite
from glasshouse.errors import BadValue
from glasshouse.evidence.register import default_path
from glasshouse.executors.local import HERE
from glasshouse.limits import Fix, Natural, check_value
from glasshouse.outside.files import path_of
from glasshouse.process import as_torch_starts, prepare_process
from glasshouse.report.html import write_html
from glasshouse.scenario.axes import cells
from glasshouse.scenario.suite import Suite
from glasshouse.scenario.write import resolved_toml

__all__ = ["audit"]

Jobs = Annotated[Natural, Fix("0 for one per core, or a number of processes")]


@as_torch_starts()
def audit(
    scenario: Asked | nn.Module,
    data: Arrays | None = None,
    *,
    model: nn.Module | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    jobs: int = 0,
    resume: bool = False,
    device: str = "auto",
    show_private: bool = False,
    captured: Path | str | None = None,
    executor: str = HERE,
    address: str = "",
    register: Path | str | bool = True,
) -> Run:
    """Simulate, attack, score and report as specified by ``scenario``.

    Args:
        scenario: a preset's name, the path of a TOML file, its tables as dictionaries, or a
            :class:`Scenario`. Or a network, of which eight clients then send gradients of single examples of
            ``data``, attacked by what ``attacks = "auto"`` chooses.
        data: (images, labels) in memory, or arrays by their names in an ``npz`` file, in place of
            ``data.source``. They are written to the run directory, so that ``resume`` finds them.
        model: a network in memory, in place of the ``[model]`` table, with its current weights. The attacks
            then run in this process, one after the other: no other process can build the network.
        sets: ``path=value``, as for ``--set``.
        out: the run directory; None: ``runs/<time>-<suite>-<hash>``.
        jobs: worker processes; 0: one per core.
        resume: continue the run in ``out``.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        show_private: do not blur private images in the report.
        captured: folder of a captured federation to audit; ``scenario`` then has no federation and no model.
        executor: where the tasks run (``glasshouse list executors``).
        address: of the executor's cluster.
        register: file that lists every audit begun (docs/evidence.md); True: the default; False: none.

    Returns:
        The run: its folder and results.

    Raises:
        UnknownName: no preset or executor of that name.
        BadFile: a file cannot be read, or ``out`` contains another run.
        BadScenario: the scenario cannot be audited; lists all its problems.
        BadValue: an argument is out of range, or no such device.

    Example: ``audit("digits-inversion", out="runs/first").findings.where(metric="psnr")``; ``docs/python.md``
    has more, tested ones.
    """
    data = None if data is None else named_arrays(data)  # once: a data set may draw at random
    scenario, model = unasked(scenario, data, model)
    check_value("worker processes", "jobs", jobs, Jobs)
    folder = run_folder(scenario, sets, out, captured=captured)
    memory = in_memory(data, model, folder)
    suite = _with_given(ask(scenario, [*sets, *memory], captured=captured), memory)
    options: dict[str, Any] = {"jobs": jobs, "resume": resume, "device": device}
    options |= {"executor": executor, "address": address, "register": register_file(register)}
    with _one_thread():
        result = audit_suite(suite, out=folder, **options)
    write_html(folder, show_private=show_private)
    return Run(folder, result)


def _with_given(suite: Suite, memory: Sequence[str]) -> Suite:
    """The suite; its given text lacks data and model from memory: then the run records the resolved one."""
    text = "\n".join(resolved_toml(one) for one in suite.scenarios)
    return suite.model_copy(update={"given": text}) if memory else suite


def register_file(register: Path | str | bool) -> Path | None:
    """The file of the register: the one that is named, the default one for True, None for False."""
    if isinstance(register, bool):
        return default_path() if register else None
    return Path(register)


def run_folder(
    scenario: Asked, sets: Sequence[str], out: Path | str | None, *, captured: Path | str | None = None
) -> Path:
    """``out``, or a new folder below ``runs`` named after time and scenario.

    Raises:
        BadValue: ``out`` is an empty string.
    """
    if out is None:
        suite = ask(scenario, sets, captured=captured)
        first = cells(suite.scenarios[0])[0].hash[:8]
        return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{suite.name}-{first}"
    if not str(out):
        raise BadValue(
            "run directory (out)",
            needs="the path of a folder",
            got="an empty text",
            fix="name a folder, '.' for this one, or leave it out",
        )
    return path_of(out, "run directory (out)")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the workers do, and restore the number of threads afterwards."""
    threads = torch.get_num_threads()
    prepare_process()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
