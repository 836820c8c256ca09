"""The round loop of protocols that exchange parameters or gradients (fedsgd, fedavg, transfer)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, final

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from glasshouse.federation.client import LocalTraining, apply_defenses, private
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.federation.pooled import Pool, is_poolable
from glasshouse.federation.secure_sum import SecureSum
from glasshouse.federation.server_rules import Mean, Screening, ServerRule
from glasshouse.federation.setting import Answer, Request, Setting
from glasshouse.interfaces import Recorder, Tamper, traits_if_known
from glasshouse.limits import Fix, Positive
from glasshouse.progress import track
from glasshouse.registry import create
from glasshouse.rng import Rng
from glasshouse.settings import covers
from glasshouse.wire import CONTROL, Aggregate, Broadcast, Crafted, Update


@dataclass(frozen=True, kw_only=True)
class ParameterRounds:
    """Base class of these protocols. Its fields are public settings, which are read from ``Terms.options``.

    Args:
        dropout: clients train with dropout enabled.
        sum_bits: bits of each contribution to a secure sum; 0: not quantised.
        sum_bound: bound to which contributions are clipped before quantisation.
    """

    dropout: bool = False
    sum_bits: Annotated[int, Ge(0), Le(32), Fix("0, or 2 to 32")] = 0
    sum_bound: Positive = 1.0

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds; see :func:`play`."""
        stated = create(type(self), setting.terms.options)
        return play(setting, recorder=recorder, rng=rng, tamper=tamper, rule=stated.server_rule())

    def server_rule(self) -> ServerRule:
        """What the server makes of the mean change, in a fresh state."""
        return Mean()

    def against_clients(self, rounds: int) -> Guarantee | None:
        """What the server's own noise proves against everybody but the server; None: there is none."""
        del rounds
        return None

    def passes(self, rounds: int) -> None:
        """None: the number of passes over the data follows from the terms."""


def play(
    setting: Setting,
    *,
    recorder: Recorder,
    rng: Rng,
    tamper: Tamper | None = None,
    rule: ServerRule | None = None,
) -> dict[str, Tensor]:
    """Run all rounds: select, broadcast, train, defend, sum, apply. See ``FederationProtocol.play``.

    The server broadcasts all tensors in round 0, the agreed start, and afterwards only those that are trained
    and shared, and what changed with them (running statistics).
    """
    state = {name: t.detach().clone() for name, t in setting.start.items()} | controls_of(setting)
    server = ServerSide(rule=rule or Mean())
    apart = (*setting.terms.training.personal, *setting.terms.training.fixed)
    clients = Clients(setting)
    received: Mapping[str, Tensor] = {}
    for number in track(range(setting.rounds), "federation", total=setting.rounds):
        terms = setting.terms
        moved = terms.training.mode == "training" and bool(received)
        changed = {
            name: t.clone()
            for name, t in state.items()
            if not received
            or (name.startswith(terms.trained) and not covers(apart, name))
            or (moved and not torch.equal(t, received[name]))
        }
        received = {**received, **changed}
        honest = Broadcast(round=number, architecture=terms.architecture, tensors=changed)
        recorder.prepare(honest)
        crafted = tamper(number) if tamper else None
        if crafted is None:
            recorder.broadcast(honest)
        else:
            recorder.own(number, state)
            for broadcast in (crafted.default, *crafted.addressed.values()):
                recorder.broadcast(broadcast)
        stream = rng.child(f"round/{number}")
        selected, answering = select(setting, rng=stream)
        requests = requests_to(answering, setting, number, received, crafted, rng=stream)
        total = one_round(setting, server, selected, requests, clients, recorder=recorder, rng=stream)
        if server.known:  # of those who answered; beside its model where it sent another
            recorder.own(number, {**(state if crafted else {}), **server.known})
        if total is not None and (crafted is None or crafted.applies):
            state = apply_total(state, total, setting, server.rule)
    return {name: t for name, t in state.items() if not name.startswith(CONTROL)}


def select(setting: Setting, *, rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The cohort, and its members that answer (at least one)."""
    order = torch.randperm(setting.terms.clients, generator=rng.child("cohort").torch())
    selected = sorted(order[: setting.terms.cohort].tolist())
    draws = torch.rand(len(selected), generator=rng.child("dropout").torch())
    answers = [c for c, u in zip(selected, draws.tolist(), strict=True) if u >= setting.dropout]
    return tuple(selected), tuple(answers or selected[:1])


def one_round(
    setting: Setting,
    server: "ServerSide",
    selected: tuple[int, ...],
    requests: list[Request],
    clients: "Clients",
    *,
    recorder: Recorder,
    rng: Rng,
) -> Aggregate | None:
    """Train the clients that answer, record what the server may see, and return the sum to apply.

    None: no client sent an update.
    """
    options, hidden, rule = setting.terms.options, setting.terms.secure_sum, server.rule
    total = SecureSum(
        round=requests[0].round,
        selected=selected,
        bits=int(options.get("sum_bits", 0)) if hidden else 0,
        bound=float(options.get("sum_bound", 1.0)),
    )
    server.known.clear()
    # Clients to whom nothing happens one by one are a single gradient.
    if clients.pool is not None and not isinstance(rule, Screening) and clients.pool.takes(requests):
        for joint in clients.pool.sums(requests):
            for client, trained in zip(joint.clients, joint.trained, strict=True):
                rows = setting.shards[client]
                recorder.private(total.round, client, index=rows, trained=trained, behaviour="honest")
            total.add_joint(joint)
        requests = []
    for request, update in gather(requests, setting, clients, recorder=recorder):
        if not hidden:
            server.note(update)
        sized = setting.terms.weighting == "size"
        weight, entering = float(update.examples) if sized else 1.0, update
        if isinstance(rule, Screening):
            # A server that clips weighs all alike, else its noise would cover a large client less.
            weight, entering = 1.0, rule.admit(update)
        total.add(entering, weight=weight, rng=request.rng.child("quantise"))
    if not total.answered:
        return None
    aggregate = total.close()
    if isinstance(rule, Screening):
        aggregate = rule.release(aggregate, rng=rng.child("server"))
    # Under a secure sum this is the first thing that the server sees of the round.
    if hidden:
        recorder.aggregate(aggregate)
    return aggregate


def requests_to(
    clients: Iterable[int],
    setting: Setting,
    number: int,
    sent: Mapping[str, Tensor],
    crafted: Crafted | None,
    *,
    rng: Rng,
) -> list[Request]:
    """The request to each client: the honest broadcast, or what was crafted for it."""
    requests = []
    for client in clients:
        broadcast = crafted.addressed.get(client, crafted.default) if crafted else None
        requests.append(
            Request(
                round=number,
                client=client,
                architecture=broadcast.architecture if broadcast else setting.terms.architecture,
                tensors={**sent, **broadcast.tensors} if broadcast else sent,
                rng=rng.child(f"client/{client}"),
            )
        )
    return requests


def gather(
    requests: list[Request], setting: Setting, clients: "Clients", *, recorder: Recorder
) -> Iterator[tuple[Request, Update]]:
    """What the asked clients send, in their order; recorded, with the ground truth behind it."""
    for request, answer in zip(requests, clients.answers(requests), strict=True):
        if answer is None:
            continue
        rows, trained = setting.shards[request.client], answer.trained
        recorder.private(
            request.round, request.client, index=rows, trained=trained, behaviour=answer.behaviour
        )
        if answer.update is None:
            continue
        if not setting.terms.secure_sum:
            recorder.update(answer.update)
        yield request, answer.update


@final
@dataclass(kw_only=True)
class ServerSide:
    """How the server steps, and what it knows of the clients' control variates if it sees single updates.

    Attributes:
        rule: what it makes of the mean change.
        known: control variates of the clients that answered in a round, as they were before it: the sum of
            the changes that they sent; by ``control.CLIENT.NAME``.
    """

    rule: ServerRule
    known: dict[str, Tensor] = field(default_factory=dict)
    _sums: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def note(self, update: Update) -> None:
        """Note the changes in one client's update."""
        changes = {n: t for n, t in update.buffers.items() if n.startswith(CONTROL)}
        before = self._sums.get(update.client, {})
        self.known |= {f"{CONTROL}{update.client}.{n.removeprefix(CONTROL)}": t for n, t in before.items()}
        self._sums[update.client] = {n: t + before[n] if n in before else t for n, t in changes.items()}


class Clients:
    """All clients of a setting; one module per architecture is reused, with each client's weights loaded.

    Personal layers stay here, by client: they start as agreed, whatever a server sends under their names.

    Attributes:
        pool: sums the gradients of several clients at once; None: something happens to each of them.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._modules: dict[str, nn.Module] = {}
        self._personal: dict[int, dict[str, Tensor]] = {}
        self._controls = traits_if_known(setting.terms.protocol).controls
        self._own: dict[int, dict[str, Tensor]] = {}
        poolable = is_poolable(setting) and not self._controls
        self.pool = Pool(setting, load=self._loaded, answer=self.answer) if poolable else None

    def answers(self, requests: list[Request]) -> Iterator[Answer | None]:
        """The answers in the order of the requests, from this process or from the crew (without guards)."""
        crew = self._setting.crew
        return map(self.answer, requests) if crew is None else crew.answers(requests)

    def answer(self, request: Request) -> Answer | None:
        """The answer of one client in one round; None: its guard refuses the model."""
        setting, number, client, rng = self._setting, request.round, request.client, request.rng
        model, guard, data = self._loaded(request), setting.guard, setting.shard(client)
        if guard is not None and not guard.accepts(model, data, round=number, client=client):
            return None
        terms = setting.terms.of_client(client)
        honest = LocalTraining.of(terms, round=number, device=setting.device)
        if self._controls:
            honest = replace(honest, control=self._correction(request))
        train = private(honest, setting.defenses)
        name, behaviour = setting.behaviours.get(client, ("honest", None))
        if behaviour is not None:
            train = behaviour.deviate(train, round=number, rng=rng.child("behaviour"))
        trained = train(model, data, rng=rng.child("train"))
        personal = self._chosen(model.state_dict())
        trained = replace(
            trained,
            tensors={n: t for n, t in trained.tensors.items() if n not in personal},
            buffers={n: t for n, t in trained.buffers.items() if n not in personal},
        )
        # the public size: a step of DP-SGD may use more or fewer examples, whose number must not be revealed
        examples = terms.batch_size if trained.kind == "gradient" else len(data)
        update = Update(
            round=number,
            client=client,
            kind=trained.kind,
            tensors=trained.tensors,
            examples=examples,
            steps=trained.steps,
            buffers=trained.buffers,
        )
        if any(d.place == "gradient" for d in setting.defenses):
            model = self._loaded(request)
        batch = data.pick(torch.unique(torch.cat(trained.order))) if trained.order else data
        update = apply_defenses(update, batch, model, setting.defenses, rng=rng, device=setting.device)
        sent = update if guard is None else guard.release(update, self._loaded(request), batch)
        self._personal[client] = personal  # only now: until here the model is loaded as it was received
        if sent is not None and self._controls:
            sent = self._with_control(sent, request, honest)
        return Answer(trained=trained, behaviour=name, update=sent)

    def _loaded(self, request: Request) -> nn.Module:
        key = repr(request.architecture)
        if key not in self._modules:
            self._modules[key] = self._setting.build(request.architecture)
        model = self._modules[key]
        own = model.state_dict()
        personal = self._personal.get(request.client) or self._chosen(self._setting.start)
        tensors = {**request.tensors, **personal}
        model.load_state_dict({name: t for name, t in tensors.items() if name in own})
        return model

    def _correction(self, request: Request) -> dict[str, Tensor]:
        """The server's control variate minus the client's own, by parameter name."""
        own = self._own.get(request.client, {})
        server = {n.removeprefix(CONTROL): t for n, t in request.tensors.items() if n.startswith(CONTROL)}
        return {name: c - own[name] if name in own else c for name, c in server.items()}

    def _with_control(self, sent: Update, request: Request, how: LocalTraining) -> Update:
        """The update with the change of the client's control variate, which follows from what is sent.

        Karimireddy et al. 2020, equation 4, option II: the new one is the mean gradient of the round.
        """
        own, received = self._own.setdefault(request.client, {}), request.tensors
        moved = sum(how.rate(step) for step in range(sent.steps))
        changes: dict[str, Tensor] = {}
        for name, t in sent.tensors.items():
            change = t if sent.kind == "delta" else t - received[name]
            changes[CONTROL + name] = -received[CONTROL + name] - change / moved
            own[name] = own.get(name, 0.0) + changes[CONTROL + name]
        return replace(sent, buffers={**sent.buffers, **changes})

    def _chosen(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the personal ones."""
        patterns = self._setting.terms.training.personal
        return {name: t.detach().clone() for name, t in tensors.items() if covers(patterns, name)}


def apply_total(
    state: Mapping[str, Tensor], total: Aggregate, setting: Setting, rule: ServerRule
) -> dict[str, Tensor]:
    """The server's model after one round, running statistics included.

    The mean change is that of one SGD step of the round's learning rate (gradients), the mean of deltas, or
    the way to the mean of new parameters. The server's rule turns it into a step, which its rate multiplies.
    """
    new, change = dict(state), {}
    for name, summed in total.tensors.items():
        mean = summed / total.weight
        if total.kind == "gradient":
            change[name] = -setting.terms.rate(total.round) * mean
        else:
            change[name] = mean if total.kind == "delta" else mean - state[name].double()
    for name, step in rule.step(change).items():
        moved = state[name].double() + setting.terms.server_rate * step
        new[name] = moved.to(state[name].dtype)
    answered = len(total.selected) - len(total.dropped)
    for name, summed in total.buffers.items():
        mean = summed / total.weight
        if name.startswith(CONTROL):  # the sum of the changes over all clients, of which these answered
            mean = state[name].double() + mean * (answered / setting.terms.clients)
        new[name] = mean.to(state[name].dtype)  # running statistics are averaged, whatever the kind
    return new


def controls_of(setting: Setting) -> dict[str, Tensor]:
    """The server's control variates before round 0: zeros, one for every parameter that travels."""
    if not traits_if_known(setting.terms.protocol).controls:
        return {}
    model = setting.build(setting.terms.architecture)
    names = LocalTraining.of(setting.terms, round=0).parameters(model)
    kept = setting.terms.training.personal
    return {CONTROL + name: torch.zeros_like(setting.start[name]) for name in names if not covers(kept, name)}
