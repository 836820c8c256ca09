"""Columns at one party, labels at another, for the same people: an embedding of every row, a gradient back.

Source: Flower, examples/vertical-fl (embeddings of all rows in every round, gradients per row back, Adam at
both), read in March 2026; split learning with two parties as in Li et al. 2022, arXiv:2102.08504.

Both messages pass between the two, so that each has a secret from the other: the columns, or the labels. The
party that reads is the "server" of views and reports, the one that has the secret is a client. Every client
is a federation of its own, with its own people.

Shape letters: N people of a federation, K of them known to both, F entries of a row, E of an embedding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.federation.protocols.documents.base import as_agreed, broadcast, check, send, table_of
from glasshouse.federation.setting import Setting
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.records import Vectors
from glasshouse.formats.tabular import document_of
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.progress import track
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Broadcast

READS: Final = ("embeddings", "gradients")


@final
@dataclass(frozen=True, kw_only=True)
class Vertical:
    """Its fields are public settings, which are read from ``Terms.options``.

    Args:
        reads: ``embeddings``: the party of the labels is who reads; ``gradients``: the party of the columns.
        known: people of each federation whose row and label both parties know, such as their own staff; they
            are nobody's secret, and not judged.
        width: of an embedding.
        hidden: width of the hidden layer of both networks.
        rate: of Adam, at both parties.
        noise: standard deviation of normal noise on what is read, as a multiple of its own.
        step: what is read is rounded to multiples of this, as a multiple of its standard deviation; 0: not.
    """

    card: ClassVar[Card] = Card(
        summary="columns and labels at two parties: an embedding of every row, a gradient for each back",
        source="Flower, examples/vertical-fl; Li et al. 2022, arXiv:2102.08504",
    )
    traits: ClassVar[Traits] = Traits(
        sends="document",
        advice="send sums over several people, or noise well above the spread of what is sent",
    )

    reads: Literal["embeddings", "gradients"] = "embeddings"
    known: int = 30
    width: int = 8
    hidden: int = 32
    rate: float = 0.01
    noise: float = 0.0
    step: float = 0.0

    def __post_init__(self) -> None:
        fits = self.known >= 0 and self.width >= 1 and self.hidden >= 1 and self.rate > 0
        if self.reads not in READS or not fits or self.noise < 0 or self.step < 0:
            raise BadValue(
                "protocol 'vertical'",
                needs="reads embeddings or gradients; known, noise, step >= 0; width, hidden >= 1; rate > 0",
                got=f"reads = {self.reads}, known = {self.known}, width = {self.width}, "
                f"hidden = {self.hidden}, rate = {self.rate}, noise = {self.noise}, step = {self.step}",
                fix="correct federation.options",
            )

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run: one per round."""
        return rounds

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds of every federation. See ``FederationProtocol.play``.

        Raises:
            BadValue: another model than ``no_model``, no table, or no more people than are known.
        """
        check(setting, tamper, model="no_model")
        how = as_agreed(self, setting.terms.options)
        table_of(setting)
        couples = list(how._couples(setting, rng))
        for number in track(range(setting.rounds), "federation", total=setting.rounds):
            broadcast(setting, number, b"", recorder)
            for client, couple in enumerate(couples):
                # What both parties know of the first people is sent before anything is about them.
                roster = document_of(couple.roster())
                capacity = setting.start[NAME].numel()
                recorder.broadcast(
                    Broadcast(
                        round=number,
                        architecture=setting.terms.architecture,
                        tensors={NAME: tensor_of(roster, capacity)},
                        client=client,
                    )
                )
                stream = rng.child(f"round/{number}/client/{client}")
                sent = couple.step(how, rng=stream)
                # The people known on purpose are no victims.
                secret = setting.shards[client][how.known :]
                send(setting, number, client, document_of(sent), recorder, rows=secret)
        return dict(setting.start)

    def _couples(self, setting: Setting, rng: Rng) -> Iterator["Couple"]:
        for client in range(setting.terms.clients):
            data = setting.shard(client)
            if len(data) <= self.known:
                raise BadValue(
                    "protocol 'vertical'",
                    needs="people whom the other party does not know",
                    got=f"{len(data)} people, {self.known} of them known",
                    fix="raise data.examples, or lower federation.options.known",
                )
            yield Couple(data, self, rng=rng.child(f"client/{client}"))


@final
class Couple:
    """Two parties that train on the same people.

    Args:
        data: rows, which one party has, and labels, which the other has.
        how: the protocol's settings.
        rng: draws the first weights.
    """

    def __init__(self, data: Batch, how: Vertical, *, rng: Rng) -> None:
        self._data, self._known = data, how.known
        sizes = (data.inputs.shape[1], how.hidden, how.width)
        self.bottom = _network(*sizes, rng=rng.child("columns"))
        self.top = _network(how.width, how.hidden, 1, rng=rng.child("labels"))
        self._steps = [torch.optim.Adam(net.parameters(), lr=how.rate) for net in (self.bottom, self.top)]

    def roster(self) -> Vectors:
        """The people whom both know: rows and labels."""
        rows, labels = self._data.inputs[: self._known], self._data.labels[: self._known]
        return Vectors(what="known", vectors=rows.double().numpy(), labels=labels.numpy())

    def step(self, how: Vertical, *, rng: Rng) -> Vectors:
        """One round: embeddings one way, gradients the other, a step of Adam at both; what the reader reads.

        Whoever has the secret changes what it sends; the other party then trains on that.
        """
        draws = rng.torch()
        made = self.bottom(self._data.inputs)
        sent = _changed(made.detach(), how, draws) if how.reads == "embeddings" else made.detach()
        sent.requires_grad_()
        margin = self.top(sent)[:, 0]
        loss = nn.functional.binary_cross_entropy_with_logits(margin, self._data.labels.to(margin))
        for optimizer in self._steps:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert sent.grad is not None
        back = _changed(sent.grad, how, draws) if how.reads == "gradients" else sent.grad
        made.backward(back)
        for optimizer in self._steps:
            optimizer.step()
        read = sent.detach() if how.reads == "embeddings" else back
        return Vectors(what=how.reads, vectors=read.double().numpy())

    def accuracy(self, data: Batch) -> float:
        """Share of right predictions of both networks together."""
        with torch.no_grad():
            return float(
                ((self.top(self.bottom(data.inputs))[:, 0] > 0) == (data.labels == 1)).double().mean()
            )


def _changed(vectors: Tensor, how: Vertical, draws: torch.Generator) -> Tensor:
    """With the noise and the rounding of whoever sends them."""
    spread = float(vectors.std())
    if how.noise:
        vectors = vectors + how.noise * spread * torch.randn(vectors.shape, generator=draws)
    if how.step and spread:
        vectors = (vectors / (how.step * spread)).round() * (how.step * spread)
    return vectors


def _network(wide: int, hidden: int, out: int, *, rng: Rng) -> nn.Sequential:
    """Two layers with uniform first weights within 1/√(inputs), as torch draws them."""
    draws = rng.torch()
    with torch.random.fork_rng(devices=[]):  # what torch draws here is replaced below
        network = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, out))
    with torch.no_grad():
        for layer in (network[0], network[2]):
            assert isinstance(layer, nn.Linear)
            bound = 1 / math.sqrt(layer.in_features)
            for part in (layer.weight, layer.bias):
                part.copy_((2 * torch.rand(part.shape, generator=draws) - 1) * bound)
    return network
