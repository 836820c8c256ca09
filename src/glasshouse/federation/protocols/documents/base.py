"""What protocols whose messages are documents share: one tensor of bytes, recorded like any update."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.setting import Setting
from glasshouse.formats.carried import NAME, bytes_of, tensor_of
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.limits import Natural
from glasshouse.modalities.row import Row
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Broadcast, Trained, Update

TRAITS = Traits(
    sends="document",
    advice="grow fewer and shallower trees, so that no cell holds few rows (min_child_weight)",
)
"""Of federations of boosted trees."""
Protocol = TypeVar("Protocol")


def as_agreed(protocol: Protocol, options: Mapping[str, Any]) -> Protocol:
    """The protocol with the settings that the terms state; it ignores options of other parts."""
    known = {field.name for field in fields(protocol)}  # type: ignore[arg-type]  # protocols are dataclasses
    return type(protocol)(**{name: value for name, value in options.items() if name in known})


def broadcast(setting: Setting, number: int, document: bytes, recorder: Recorder) -> None:
    """Record the document that the server sends in a round; empty: there is none yet."""
    tensors = {NAME: tensor_of(document, setting.start[NAME].numel())}
    message = Broadcast(round=number, architecture=setting.terms.architecture, tensors=tensors)
    recorder.prepare(message)
    recorder.broadcast(message)


def send(
    setting: Setting,
    number: int,
    client: int,
    document: bytes,
    recorder: Recorder,
    *,
    rows: Tensor | None = None,
    rng: Rng | None = None,
) -> bytes:
    """Record what a client sends about ``rows`` of the private pool (None: all of its own).

    ``rng``: of the client's defences; only protocols that refuse all of them leave it out.

    Returns:
        What the server gets.
    """
    index = setting.shards[client] if rows is None else rows
    tensors = {NAME: tensor_of(document, setting.start[NAME].numel())}
    trained = Trained(tensors=tensors, kind="document", steps=1, order=(torch.arange(len(index)),))
    recorder.private(number, client, index=index, trained=trained, behaviour="honest")
    update = Update(round=number, client=client, kind="document", tensors=tensors, examples=len(index))
    for position, defense in enumerate(setting.defenses):
        assert rng is not None
        assert defense.place == "update"  # check
        update = defense.update(update, rng=rng.child(f"defense/{position}"))
    recorder.update(update)
    return bytes_of(update.tensors[NAME])


def check(setting: Setting, tamper: Tamper | None, *, model: str, defended: bool = False) -> None:
    """Refuse what documents do not have.

    ``defended``: clients may rewrite what they send; each defence refuses what it cannot rewrite.

    Raises:
        BadValue: another model than ``model``, or settings of federations that exchange numbers.
    """
    terms = setting.terms
    conflicts = {
        f"another model than {model}": terms.architecture.name != model,
        "secure_sum": terms.secure_sum,
        "a cohort below all clients": terms.cohort < terms.clients,
        "dropout of clients": setting.dropout > 0,
        "a malicious server": tamper is not None,
        "defences on numbers": any(not defended or d.place != "update" for d in setting.defenses),
        "misbehaving clients": bool(setting.behaviours),
    }
    if wrong := [word for word, bad in conflicts.items() if bad]:
        raise BadValue(
            f"protocol '{terms.protocol}'",
            needs=f"model {model}, honest parties, all clients in every round, no defence on numbers",
            got=", ".join(wrong),
            fix=f'set model.name = "{model}"; leave cohort, dropout, secure_sum, defenses as they are',
        )


def table_of(setting: Setting) -> Row:
    """The columns of the private rows.

    Raises:
        BadValue: the data are no table.
    """
    inputs = setting.terms.architecture.inputs
    if not isinstance(inputs, Row):
        raise BadValue(
            f"protocol '{setting.terms.protocol}'",
            needs="rows of a table",
            got=inputs.nouns,
            fix='choose data.source = "clinic" or "table:SCHEMA.toml"',
        )
    return inputs


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Present:
    """The rows that a site has in a round.

    Attributes:
        client: the site.
        index: of the private pool, (B,).
        batch: the rows.
    """

    client: int
    index: Tensor
    batch: Batch


@dataclass(frozen=True, kw_only=True)
class Reports:
    """Base class of protocols in which every site answers each round with numbers about its rows.

    Args:
        joins: people who join each site before every further round.
        leaves: people who leave each site before every further round.
    """

    joins: Natural = 0
    leaves: Natural = 0

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run: one per round."""
        return rounds

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds. See ``FederationProtocol.play``.

        Raises:
            BadValue: another model, no table, or more people who move than a site has.
        """
        check(setting, tamper, model="no_model")
        how = as_agreed(self, setting.terms.options)
        table = table_of(setting)
        for number in track(range(setting.rounds), "federation", total=setting.rounds):
            broadcast(setting, number, b"", recorder)
            for site in how._present(setting, number):
                stream = rng.child(f"round/{number}/client/{site.client}")
                document = how.report(table, site, number, rng=stream)
                send(setting, number, site.client, document, recorder, rows=site.index)
        return dict(setting.start)

    def _present(self, setting: Setting, number: int) -> Iterator[Present]:
        """The rows of every site: the last ones have not joined yet, the first ones have left."""
        later = setting.rounds - 1 - number
        for client, shard in enumerate(setting.shards):
            index = shard[self.leaves * number : len(shard) - self.joins * later]
            if self.joins < 0 or self.leaves < 0 or not len(index):
                raise BadValue(
                    f"protocol '{setting.terms.protocol}'",
                    needs="joins and leaves of at least 0 that leave each site somebody in every round",
                    got=f"joins = {self.joins}, leaves = {self.leaves}, {len(shard)} rows, "
                    f"{setting.rounds} rounds",
                    fix="raise data.examples, or lower joins, leaves or rounds",
                )
            yield Present(client=client, index=index, batch=setting.private.pick(index))

    def report(self, table: Row, site: Present, number: int, *, rng: Rng) -> bytes:
        """The document of one site in one round."""
        raise NotImplementedError
