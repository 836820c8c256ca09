"""The inputs of an audit: a scenario by name, file, table or object; data and a network in memory."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from glasshouse.api.arrays import Arrays, count_labels, has_told_targets, named_arrays
from glasshouse.audit.auto import choose
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.data.base import DataSource, assemble
from glasshouse.data.paths import SPLITS
from glasshouse.data.shaped.arrays import source_of
from glasshouse.disk import write_bytes
from glasshouse.errors import BadValue
from glasshouse.interfaces.modes import FAULTS
from glasshouse.models.adapt import adapt
from glasshouse.models.base import evaluated
from glasshouse.models.handed_over import copied
from glasshouse.models.memory import keep
from glasshouse.scenario.axes import plain
from glasshouse.scenario.check import Inspect
from glasshouse.scenario.defaults import AUTO
from glasshouse.scenario.load import from_dict, load, load_table
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.suite import Suite

__all__ = ["Asked", "ask", "in_memory", "scenario", "unasked"]

Asked = str | Path | Mapping[str, Any] | Scenario
"""A preset's name, the path of a TOML file, its tables as dictionaries, or a checked scenario."""

_CLIENTS: Final = 8


def scenario(raw: Mapping[str, Any], *, subject: str = "a scenario") -> Scenario:
    """A scenario from plain data, the tables of a TOML file as dictionaries; validated like a file.

    Without ``attacks`` it has those that ``attacks = "auto"`` chooses.

    Args:
        raw: the tables.
        subject: what an error calls the scenario.

    Raises:
        BadScenario: lists every problem.

    Examples:
        >>> scenario({"name": "mine", "attacks": ["idlg"]}).data.source
        'digits'
        >>> scenario({"name": "mine"}).attacks[0].name
        'label_inference'
    """
    return from_dict(raw, subject=subject, choose=choose)


def ask(
    scenario: Asked,
    sets: Sequence[str] = (),
    *,
    inspect: Inspect | None = None,
    captured: Path | str | None = None,
) -> Suite:
    """The checked suite of ``scenario``, after applying ``sets`` (``path=value``).

    ``captured``: folder of a capture, which replaces the scenario's federation.

    Raises:
        UnknownName: no preset of that name.
        BadFile: the file cannot be read.
        BadScenario: all other problems at once.
    """
    tables = {} if captured is None else captured_tables(Path(captured))
    if isinstance(scenario, Scenario):
        scenario = plain(scenario)
    if isinstance(scenario, Mapping):
        return load_table(scenario, sets, inspect=inspect, captured=tables, choose=choose)
    return load(str(scenario), sets, inspect=inspect, captured=tables, choose=choose)


def unasked(
    scenario: Asked | nn.Module, data: Arrays | None, model: nn.Module | None
) -> tuple[Asked, nn.Module | None]:
    """The scenario and the network of a call; of a call with a network alone, the usual scenario.

    The usual one has eight clients that send the gradient of one example each. A third of the data are the
    adversary's, a third are held out, at most 200 each. Masks are told to the adversary.

    Raises:
        BadValue: a network without data.
    """
    if not isinstance(scenario, nn.Module):
        return scenario, model
    if data is None or model is not None:
        raise BadValue(
            "audit of a network",
            needs="the network and its data: audit(model, (images, labels))",
            got="no data" if data is None else "two networks",
            fix="give both, or a scenario first",
        )
    arrays = named_arrays(data)
    third = max(1, min(200, count_labels(arrays) // 3))
    usual = {
        "name": "audit",
        "summary": "Eight clients train this network and send the gradient of one example each.",
        "data": {"auxiliary": third, "heldout": third},
        "federation": {"clients": _CLIENTS},
        "attacks": AUTO,
        "audit": {"distractors": min(99, third)},
    }
    if has_told_targets(arrays):  # an upper bound: whoever knows the masks
        usual["grants"] = {"labels": True}
    return usual, scenario


def in_memory(data: Arrays | None, model: nn.Module | None, folder: Path) -> list[str]:
    """Assignments that insert data and a network from memory into a scenario.

    Arrays are written to ``folder``, under a name that contains their hash. A network replaces the
    ``[model]`` table, with its current weights.

    Raises:
        BadValue: ``data`` has no known form, or the network cannot be audited.
        BadFile: the arrays are not images and labels.
        DiskFull: no disk space for the arrays.
    """
    sets = []
    if data is not None:
        source = _save(data, folder, model)
        sets.append(f"data.source={json.dumps(source, ensure_ascii=False)}")
    if model is not None:
        sets.append(f'model={{name = "{keep(model)}"}}')
    return sets


def _save(data: Arrays, folder: Path, model: nn.Module | None) -> str:
    """Write arrays to ``folder``; the source that reads them."""
    arrays: dict[str, Any] = named_arrays(data)
    kind = "npz" if not any(name.endswith("_inputs") for name in arrays) else "arrays"
    if kind == "arrays":
        source_of("in memory", arrays)
    else:
        pairs = {
            split: (arrays[f"{split}_images"], arrays[f"{split}_labels"])
            for split in SPLITS
            if {f"{split}_images", f"{split}_labels"} <= arrays.keys()
        }
        names: Any = arrays.get("class_names")
        source = assemble("in memory", pairs, class_names=names, public=False, resize=None)
        if names is None and model is not None:
            arrays |= _class_names(model, source)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    path = folder.resolve() / f"data-{hashlib.sha256(content).hexdigest()[:12]}.npz"
    write_bytes(path, content)
    return f"{kind}:{path}"


def _class_names(model: nn.Module, source: DataSource) -> dict[str, NDArray[Any]]:
    """Names of as many classes as ``model`` has outputs, where that is more than occur in the labels."""
    if not source.task.one_label:
        return {}
    try:
        own = adapt(copied(model))  # adapting changes layers: the user's network stays as it is
        with evaluated(own):
            outputs = own(source.inputs.blank(1))
    except FAULTS:
        return {}  # the network does not take such examples; the check of the scenario says why
    if outputs.ndim != 2 or outputs.shape[1] <= len(source.class_names):
        return {}
    return {"class_names": np.array([str(number) for number in range(outputs.shape[1])])}
