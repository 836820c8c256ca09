"""Ground truth of every update (private examples, step order, behaviour), on disk and in memory.

Step orders are stored only for recorded rounds; each client's rows and misbehaving clients always.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.cache import digest
from glasshouse.errors import Undefined
from glasshouse.store import read_jsonl, read_tensors, write_jsonl, write_tensors
from glasshouse.wire import Batch


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Used:
    """One client's round: the rows of the private pool used in each local step, and its behaviour."""

    steps: tuple[tuple[int, ...], ...]
    behaviour: str

    def rows(self) -> list[int]:
        """Distinct rows, in order of first use."""
        return list(dict.fromkeys(row for step in self.steps for row in step))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The ground truth of one simulation.

    Attributes:
        private: the pool of all clients' examples.
        shards: each client's rows of the pool, by client id.
        used: by (round, client), for the recorded rounds.
        marked: clients with the property under audit (members, misbehaving), by name of the property.
        arrived: the clients of every round in the order in which their updates came in.
    """

    private: Batch
    shards: Mapping[int, tuple[int, ...]]
    used: Mapping[tuple[int, int], Used]
    marked: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    arrived: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    _names: dict[tuple[int, int | None], str] = field(init=False, repr=False, default_factory=dict)
    """Cache of :meth:`identity`, which every metric calls."""

    def batch(self, round: int, client: int | None) -> tuple[Batch, Tensor]:
        """The distinct examples of one update, or a whole round (client None), and their owners (B,).

        Raises:
            Undefined: nothing was recorded for that round and client.
        """
        rows = self._behind(round, client)
        index = torch.tensor([row for row, _ in rows])
        return self.private.pick(index), torch.tensor([owner for _, owner in rows])

    def _behind(self, round: int, client: int | None) -> list[tuple[int, int]]:
        """Rows of the private pool, each with its owner."""
        keys = sorted(k for k in self.used if k[0] == round and client in (None, k[1]))
        rows = [(row, key[1]) for key in keys for row in self.used[key].rows()]
        if not rows:
            raise Undefined(
                "truth behind a claim",
                needs="a round and client that were recorded",
                got=f"round {round}, client {client}",
                fix="keep that round: federation.keep, audit.rounds",
            )
        return rows

    def with_property(self, count: int) -> NDArray[np.bool_]:
        """Which of ``count`` clients have the property under audit, (count,).

        Raises:
            Undefined: there is no such property, or several.
        """
        groups = list(self.marked.values())
        if len(groups) != 1:
            raise Undefined(
                "scores of clients",
                needs="exactly one property that some clients have",
                got=", ".join(self.marked) or "none",
                fix="give federation.behaviours, or data.members",
            )
        having = np.zeros(count, dtype=bool)
        having[list(groups[0])] = True
        return having

    def people(self, round: int, client: int | None) -> frozenset[int]:
        """The people in the examples of one update, or a whole round; empty if unknown.

        Raises:
            Undefined: nothing was recorded for that round and client.
        """
        groups = self.private.groups
        rows = [row for row, _ in self._behind(round, client)]
        return frozenset() if groups is None else frozenset(groups[torch.tensor(rows)].tolist())

    def identity(self, round: int, client: int | None) -> str:
        """Digest of the examples of one update, or a whole round; independent of their order.

        Raises:
            Undefined: nothing was recorded for that round and client.
        """
        if (round, client) not in self._names:
            rows = [row for row, _ in self._behind(round, client)]
            self._names[round, client] = digest(sorted(self.print_of(row) for row in rows))
        return self._names[round, client]

    @cached_property
    def print_of(self) -> Callable[[int], str]:
        """The digest of the image in a row, computed on first use and cached."""
        images = self.private.inputs
        return cache(lambda row: digest(images[row]))


def write_truth(truth: Truth, folder: Path) -> None:
    """Write ``truth`` below ``folder``, which never leaves the auditor."""
    folder.mkdir(parents=True, exist_ok=True)
    private = {"inputs": truth.private.inputs, "labels": truth.private.labels}
    if truth.private.groups is not None:
        private["groups"] = truth.private.groups
    write_tensors(folder / "private.safetensors", private)
    lines: list[dict[str, object]] = [{"client": c, "rows": list(rows)} for c, rows in truth.shards.items()]
    lines += [
        {"round": r, "client": c, "steps": [list(s) for s in used.steps], "behaviour": used.behaviour}
        for (r, c), used in truth.used.items()
    ]
    lines += [{"property": name, "clients": list(clients)} for name, clients in truth.marked.items()]
    lines += [{"round": r, "arrived": list(clients)} for r, clients in truth.arrived.items()]
    write_jsonl(folder / "rounds.jsonl", lines)


def read_truth(folder: Path) -> Truth:
    """Read what :func:`write_truth` wrote."""
    tensors = read_tensors(folder / "private.safetensors")
    shards, used, marked, arrived = {}, {}, {}, {}
    for line in read_jsonl(folder / "rounds.jsonl"):
        if "rows" in line:
            shards[line["client"]] = tuple(line["rows"])
        elif "steps" in line:
            steps = tuple(tuple(s) for s in line["steps"])
            used[line["round"], line["client"]] = Used(steps=steps, behaviour=line["behaviour"])
        elif "arrived" in line:
            arrived[line["round"]] = tuple(line["arrived"])
        else:
            marked[line["property"]] = tuple(line["clients"])
    private = Batch(**tensors)
    return Truth(private=private, shards=shards, used=used, marked=marked, arrived=arrived)
