"""The round loop of protocols that exchange logits on public data (fedmd, fedgems, dsfl).

Before round 0 every client trains on public data and uploads its logits. In round t the server computes a
consensus of the uploads and broadcasts it; clients learn from it and train on their own data; upload t + 1
follows. So T rounds have T + 1 uploads, the last one after the last round. The server's own state when an
upload arrives (its model and its logits) is recorded under the upload's round, from 1 on.

Shape letters: P public examples, K classes, T rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining, apply_defenses, private
from glasshouse.federation.learner import Learner, PrivateEpochs
from glasshouse.federation.setting import Setting
from glasshouse.interfaces import Recorder, Tamper, Trainer
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import check_finite
from glasshouse.wire import Architecture, Batch, Broadcast, Update


@dataclass(frozen=True, kw_only=True)
class Scheme(Protocol):
    """Base class of these protocols: the round loop, and the phases that each defines.

    Its fields are public settings, which are read from ``Terms.options``.
    """

    @property
    def weight_decay(self) -> float: ...

    @property
    def private_rate(self) -> float: ...

    def prepare(self, client: Learner, public: Batch, *, rng: Rng) -> int:
        """A client's public training before the first upload; returns the private epochs to follow."""

    def consensus(self, uploads: Sequence[Tensor], server: Learner, public: Batch, *, rng: Rng) -> Tensor:
        """The broadcast logits, (P, K), as defined by the protocol."""

    def learn(self, client: Learner, public: Batch, consensus: Tensor, *, clients: int, rng: Rng) -> int:
        """A client's training on the consensus; returns the private epochs to follow."""

    def serve(self, server: Learner, public: Batch, consensus: Tensor, *, rng: Rng) -> None:
        """The server's own training after the broadcast."""

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds. See ``FederationProtocol.play``.

        Raises:
            BadValue: no public data, secure aggregation, partial cohorts, dropout, or a malicious server.
        """
        public, terms = _check_setting(setting, tamper), setting.terms
        names = {field.name for field in fields(self) if field.init}
        scheme = replace(self, **{name: v for name, v in terms.options.items() if name in names})
        server = _party(setting, scheme, terms.architecture, rng=rng.child("server"))
        server.model.load_state_dict(dict(setting.start))
        clients = Clients(setting, scheme, recorder, rng=rng.child("clients"))
        uploads = []
        # Before round 0 everybody learns alone and uploads once: there is no consensus yet.
        for number, client in enumerate(clients.learners):
            stream = rng.child(f"prepare/{number}")
            epochs = scheme.prepare(client, public, rng=stream.child("public"))
            uploads.append(clients.upload(0, number, public, epochs, rng=stream))
        for t in track(range(setting.rounds), "federation", total=setting.rounds):
            stream = rng.child(f"round/{t}")
            consensus = scheme.consensus(uploads, server, public, rng=stream.child("consensus"))
            check_finite({"logits": consensus}, subject=f"consensus of round {t}")
            broadcast = Broadcast(round=t, architecture=terms.architecture, tensors={"logits": consensus})
            recorder.prepare(broadcast)
            recorder.broadcast(broadcast)
            # All learn from the same consensus, so that no upload of this round may enter it.
            uploads, epochs_each = [], []
            for number, client in enumerate(clients.learners):
                learning = stream.child(f"client/{number}").child("public")
                epochs_each.append(
                    scheme.learn(client, public, consensus, clients=terms.clients, rng=learning)
                )
            scheme.serve(server, public, consensus, rng=stream.child("server"))
            # What the server's own model says of the public images is what it knows without this round's
            # uploads.
            model = {f"model.{name}": tensor for name, tensor in server.state().items()}
            recorder.own(t + 1, {"logits": server.logits(public.inputs), **model})
            for number, epochs in enumerate(epochs_each):
                client_rng = stream.child(f"client/{number}")
                uploads.append(clients.upload(t + 1, number, public, epochs, rng=client_rng))
        return server.state()


def _check_setting(setting: Setting, tamper: Tamper | None) -> Batch:
    terms = setting.terms
    conflicts = {
        "no public data": terms.public is None,
        "secure_sum": terms.secure_sum,
        "a cohort below all clients": terms.cohort < terms.clients,
        "dropout of clients": setting.dropout > 0,
        "a malicious server": tamper is not None,
    }
    wrong = [word for word, bad in conflicts.items() if bad]
    if wrong or terms.public is None:
        raise BadValue(
            f"protocol '{terms.protocol}'",
            needs="public data, all clients in every round, uploads that the server sees, an honest server",
            got=", ".join(wrong),
            fix="set data.domains; leave cohort, dropout, secure_sum and threat.changes at their defaults",
        )
    return terms.public


def _party(setting: Setting, scheme: Scheme, architecture: Architecture, *, rng: Rng) -> Learner:
    return Learner(
        setting.build(architecture, rng=rng),
        rate=setting.terms.learning_rate,
        decay=scheme.weight_decay,
        batch_size=setting.terms.batch_size,
    )


class Clients:
    """All clients of a setting, each with its own model, which is never sent."""

    def __init__(self, setting: Setting, scheme: Scheme, recorder: Recorder, *, rng: Rng) -> None:
        self._setting, self._scheme, self._recorder = setting, scheme, recorder
        agreed = setting.terms.architecture
        self.learners = [
            _party(setting, scheme, setting.architectures.get(k, agreed), rng=rng.child(str(k)))
            for k in range(setting.terms.clients)
        ]

    def upload(self, number: int, client: int, public: Batch, epochs: int, *, rng: Rng) -> Tensor:
        """Train on the client's own data, then send logits (P, K) after the defences."""
        setting, learner, recorder = self._setting, self.learners[client], self._recorder
        data = setting.shard(client)
        train: Trainer = PrivateEpochs(learner=learner, epochs=epochs)
        if any(defense.place == "local" for defense in setting.defenses):  # DP-SGD has its own SGD
            size, rate = min(learner.batch_size, len(data)), self._scheme.private_rate
            plain = LocalTraining(kind="parameters", batch_size=size, learning_rate=rate, epochs=epochs)
            train = private(plain, setting.defenses)
        name, behaviour = setting.behaviours.get(client, ("honest", None))
        if behaviour is not None:
            train = behaviour.deviate(train, round=number, rng=rng.child("behaviour"))
        trained = train(learner.model, data, rng=rng.child("train"))
        learner.model.eval()
        recorder.private(number, client, index=setting.shards[client], trained=trained, behaviour=name)
        update = Update(
            round=number,
            client=client,
            kind="logits",
            tensors={"logits": learner.logits(public.inputs)},
            examples=len(data),
            steps=trained.steps,
        )
        batch = data.pick(torch.unique(torch.cat(trained.order))) if trained.order else data
        message = apply_defenses(update, batch, learner.model, setting.defenses, rng=rng)
        recorder.update(message)
        logits: Tensor = message.tensors["logits"]
        return logits
