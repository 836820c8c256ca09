"""A client app guards its node although nobody tells it the network or the data."""

import threading

import flower_apps as apps
import pytest
import torch
from flower_apps import message_server, workflow_server
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from test_flower_guard import (
    MLP,
    NARROW,
    NODES,
    Crafting,
    bins,
    decisions,
    equal_rows,
    one_class,
    own_data,
    run,
    trap_weights,
)
from torch import nn
from torch.nn import functional

from glasshouse.integrations.flower import GuardedClientApp, guarded, used
from glasshouse.integrations.flower.in_process import InProcessGrid
from glasshouse.models import build as models
from glasshouse.rng import Rng

ATTACKS = (bins, trap_weights, one_class, equal_rows)
CRAFTED = "refused by the client's guard: a model that clients do not train on"
UNSEEN = "refused by the client's guard: the model could not be examined"


def steps_of(network, examples, *, batch, wrap=lambda net: net, loss=functional.cross_entropy):
    """Training as people write it; yields after each step."""
    inputs, labels = examples
    optimizer = torch.optim.SGD(network.parameters(), lr=apps.RATE)
    trained = wrap(network.train())
    for rows in torch.arange(len(labels)).split(batch):
        optimizer.zero_grad()
        loss(trained(inputs[rows]), labels[rows]).backward()
        optimizer.step()
        yield


def client(folder, *, steps=None, batch=64, model=MLP, app=None, train=steps_of, **settings):
    """A user's app on 64 digits, with the guard in place of Flower's class; ``steps`` collects its steps."""
    app = app or GuardedClientApp(reports=folder, most=64)  # what stands in updates is tested elsewhere

    @app.train()
    def _train(message, context):
        network = apps.start(model)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        for _ in train(network, own_data(context), batch=batch, **settings):
            if steps is not None:
                steps.append(context.node_id)
        metrics = MetricRecord({"num-examples": 64})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def _evaluate(message, context):
        network = apps.start(model)
        inputs, labels = own_data(context)
        functional.cross_entropy(network(inputs), labels)
        metrics = MetricRecord({"eval_loss": 1.5, "num-examples": 64})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def crafting(craft, *, first=1):
    """A server that crafts its model from round ``first`` on."""
    strategy = Crafting()
    strategy.craft = lambda state: craft(state) if strategy.turn >= first else state
    configure = strategy.configure_train

    def configure_train(server_round, *others):
        strategy.turn = server_round
        return configure(server_round, *others)

    strategy.configure_train = configure_train
    return strategy


def refused(record, reason=CRAFTED):
    return (record.updates, [d.reason for d in record.dropouts]) == ((), [reason] * len(NODES))


@pytest.mark.parametrize("craft", ATTACKS)
def test_crafted_models_are_refused_by_every_client_before_any_step(craft, tmp_path):
    steps = []
    server = message_server(1, MLP, crafting(craft))
    record = run(server, client(tmp_path / "guard", steps=steps), tmp_path).rounds[0]
    assert refused(record)
    assert steps == []
    assert [line["decision"] for line in decisions(tmp_path / "guard")] == ["refused"] * 3


def test_in_small_batches_a_crafted_model_is_refused_before_anything_is_sent(tmp_path):
    steps = []
    server = message_server(1, MLP, crafting(trap_weights))
    record = run(server, client(tmp_path / "guard", steps=steps, batch=24), tmp_path).rounds[0]
    assert refused(record)
    assert len(steps) == 3 * 2  # 64 examples are known with the third batch of 24


def test_what_was_seen_in_one_round_is_tried_in_the_next_before_any_step(tmp_path):
    steps = []
    server = message_server(2, MLP, crafting(trap_weights, first=2))
    first, second = run(server, client(tmp_path / "guard", steps=steps, batch=16), tmp_path).rounds
    assert len(first.updates) == 3
    assert refused(second)
    assert len(steps) == 3 * 4  # of the first round


def test_data_are_tried_before_any_step(tmp_path):
    steps = []
    guarding = GuardedClientApp(reports=tmp_path / "guard", data=own_data, most=64)
    server = message_server(1, MLP, crafting(trap_weights))
    assert refused(run(server, client(None, app=guarding, steps=steps, batch=8), tmp_path).rounds[0])
    assert steps == []


@pytest.mark.parametrize(("model", "tensors"), [(NARROW, 4), (apps.MODEL, 10)])
def test_honest_models_are_trained_on_and_the_report_says_what_was_checked(model, tensors, tmp_path):
    rounds = run(
        message_server(2, model), client(tmp_path / "guard", batch=16, model=model), tmp_path, model=model
    )
    assert [len(record.updates) for record in rounds.rounds] == [3, 3]
    assert all(
        m.values["eval_loss"] == 1.5 for r in rounds.rounds for m in r.metrics if m.stage == "evaluate"
    )
    lines = decisions(tmp_path / "guard")
    assert [line["decision"] for line in lines] == ["sent"] * 6
    checked = "The model's weights were checked, and its behaviour on 64 of your examples, "
    said = [(line["round"], *line["reasons"][-1].split(" It was ")) for line in lines]
    assert {one[:2] for one in said} == {
        (0, f"{checked}after 3 batches (Passed: looked at {tensors} of {tensors} tensors, 100 %.)."),
        (1, f"{checked}before any training (Passed: looked at {tensors} of {tensors} tensors, 100 %.)."),
    }
    assert all("of your 64 examples, loss" in fit for *_, fit in said)
    assert all(("; the last accepted one: " in fit) == (number == 1) for number, _, fit in said)


SEEDS = range(20, 25)
HONEST = [(model, seed) for model in (MLP, apps.MODEL) for seed in SEEDS]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "seed"), HONEST)
def test_three_hundred_honest_models_are_trained_on(model, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(apps, "start", lambda which=model: models.build(which, rng=Rng.root(seed)))
    app = client(tmp_path / "guard", batch=16, model=model)
    rounds = run(message_server(10, model), app, tmp_path, model=model).rounds
    assert [len(record.updates) for record in rounds] == [3] * 10
    made = [(line["decision"], line["reasons"][-1]) for line in decisions(tmp_path / "guard")]
    assert len(made) == 30
    assert all(decision == "sent" and "behaviour on 64" in checked for decision, checked in made)


def swallowing(network, examples, **settings):
    """Steps of somebody who catches everything, and changes the parameters whatever happened."""
    for _ in range(2):
        try:
            yield from steps_of(network, examples, **settings)
        except Exception:  # noqa: BLE001
            with torch.no_grad():
                next(network.parameters()).add_(1.0)


def test_an_app_that_catches_the_refusal_is_refused(tmp_path):
    steps = []
    app = client(tmp_path / "guard", train=swallowing, steps=steps)
    assert refused(run(message_server(1, MLP, crafting(equal_rows)), app, tmp_path).rounds[0])
    assert steps == []


class Dropping(nn.Module):
    """A network whose training draws random numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.second(functional.dropout(self.first(x.flatten(1)).tanh(), training=self.training))


def ask(app, state, node=1, config=None):
    """One message of training to one node; its reply."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    grid = InProcessGrid(apps={node: app}, configs={node: config or {}})
    message = Message(RecordDict({"arrays": ArrayRecord(state)}), node, "train", group_id="1")
    return grid.send_and_receive([message])[0]


def trainer(app, network, *, train=steps_of, **settings):
    """``app`` with a train function around ``network``."""

    @app.train()
    def _train(message, context):
        torch.manual_seed(7)
        mine = network()
        state = message.content["arrays"].to_torch_state_dict()
        mine.load_state_dict(dict(zip(mine.state_dict(), state.values(), strict=True)))
        list(train(mine, own_data(context), **{"batch": 32, **settings}))
        named = dict(zip(state, mine.state_dict().values(), strict=True))
        return Message(RecordDict({"arrays": ArrayRecord(named)}), reply_to=message)

    return app


def first_state(network, seed=5):
    torch.manual_seed(seed)
    return network().state_dict()


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))


def test_a_guarded_training_is_the_same_training(tmp_path):
    state = first_state(Dropping)
    replies = [
        ask(trainer(app, Dropping), state)
        for app in (ClientApp(), GuardedClientApp(reports=tmp_path, most=64))
    ]
    one, other = (reply.content["arrays"].to_torch_state_dict() for reply in replies)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], state[name]) for name in one)


class Told(nn.Module):
    """A loss that is neither cross-entropy nor one of torch's."""

    def forward(self, logits, labels):
        return (logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]).mean()


def telling(network, examples, *, batch):
    """Steps of a loss that nobody knows, told before each."""
    for rows in torch.arange(len(examples[1])).split(batch):
        some = examples[0][rows], examples[1][rows]
        used(*some)
        yield from steps_of(network, some, batch=batch, loss=Told())


class Wrapped(nn.Module):
    """Somebody's own wrapper, whose tensors have other names, in the same order."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


WAYS = {
    "loss module": {"loss": nn.CrossEntropyLoss()},
    "log-softmax": {"loss": lambda logits, y: functional.nll_loss(logits.log_softmax(1), y)},
    "one-hot": {
        "loss": lambda logits, y: functional.cross_entropy(logits, functional.one_hot(y, 10).float())
    },
    "wrapped": {"wrap": Wrapped},
    "compiled": {"wrap": lambda net: torch.compile(net, backend="eager")},
}


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("way", WAYS)
def test_the_network_and_its_examples_are_seen_however_it_is_called(way, tmp_path):
    reply = ask(trainer(GuardedClientApp(reports=tmp_path, most=64), plain, **WAYS[way]), first_state(plain))
    assert reply.has_content()
    (line,) = decisions(tmp_path)
    assert line["decision"] == "sent"
    assert "behaviour on 64 of your examples, after 1 batches" in line["reasons"][-1]


def in_a_thread(network, examples, *, batch):
    thread = threading.Thread(target=lambda: list(steps_of(network, examples, batch=batch)))
    thread.start()
    thread.join()
    return []


def without_modules(network, examples, *, batch):
    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    return []


def of_two_inputs(network, examples, *, batch):
    """Trains a network that takes more than its examples, and is never called without."""
    network.forward = lambda x, scale: nn.Sequential.forward(network, x) * scale
    return steps_of(network, examples, batch=batch, wrap=lambda net: lambda x: net(x, 2.0))


UNSEEABLE = {
    "another thread": {"train": in_a_thread},
    "no module": {"train": without_modules},
    "several inputs": {"train": of_two_inputs},
    "an unknown loss": {"loss": Told()},
    "compiled in place": {"wrap": lambda net: (net.compile(backend="eager"), net)[1]},
}


@pytest.mark.filterwarnings("default")  # torch's compiler has its own
@pytest.mark.parametrize("way", UNSEEABLE)
def test_what_cannot_be_examined_is_refused_unless_that_is_allowed(way, tmp_path):
    for unchecked in (False, True):
        app = GuardedClientApp(reports=tmp_path / str(unchecked), unchecked=unchecked)
        reply = ask(trainer(app, plain, **UNSEEABLE[way]), first_state(plain))
        (line,) = decisions(tmp_path / str(unchecked))
        assert reply.has_content() == unchecked
        assert line["decision"] == ("sent unchecked" if unchecked else "refused")
        if not unchecked:
            assert reply.error.reason == UNSEEN


class Paired(nn.Module):
    """Its own parameter works on two examples and more alone, so that none is looked at by itself."""

    def __init__(self):
        super().__init__()
        self.matrix, self.head = nn.Parameter(torch.randn(64, 12) / 8), nn.Linear(12, 10)

    def forward(self, inputs):
        if len(inputs) < 2:
            raise ValueError("a batch of one")
        return self.head(inputs.flatten(1) @ self.matrix)


def test_a_part_of_a_model_that_cannot_be_looked_at_is_refused_unless_that_is_allowed(tmp_path):
    for unchecked in (False, True):
        app = GuardedClientApp(reports=tmp_path / str(unchecked), unchecked=unchecked, most=64)
        reply = ask(trainer(app, Paired), first_state(Paired))
        lines = decisions(tmp_path / str(unchecked))
        assert reply.has_content() == unchecked
        assert ("refused" in {line["decision"] for line in lines}) != unchecked
        assert any("matrix" in reason for line in lines for reason in line["reasons"])


def test_a_loss_that_nobody_knows_is_told(tmp_path):
    app = trainer(GuardedClientApp(reports=tmp_path), plain, train=telling)
    assert ask(app, first_state(plain)).has_content()


def test_what_was_not_trained_is_sent(tmp_path):
    app = trainer(GuardedClientApp(reports=tmp_path), plain, train=lambda *_, **__: [])
    assert ask(app, first_state(plain)).has_content()
    assert "nothing was trained" in decisions(tmp_path)[0]["reasons"][0]


def test_a_nodes_own_configuration_comes_first_and_the_runs_is_not_asked(tmp_path):
    strict = trainer(GuardedClientApp(reports=tmp_path / "unused", mitigated=False), plain)
    node = {
        "guard-reports": str(tmp_path / "node"),
        "guard-most": 64,
    }  # -1: whatever stands there is too much
    assert ask(strict, first_state(plain), config=node).has_content()
    assert not (tmp_path / "unused").exists()
    assert not ask(strict, first_state(plain), config={**node, "guard-most": -1}).has_content()
    assert "guard-most" in ask(strict, first_state(plain), config={"guard-most": "many"}).error.reason


def numpy_app(folder, mods=(), **settings):
    """A legacy client, which receives and sends a list of arrays."""

    class Client(NumPyClient):
        def __init__(self, context):
            self.context = context

        def fit(self, parameters, config):
            network = apps.start()
            state = {n: torch.tensor(a) for n, a in zip(network.state_dict(), parameters, strict=True)}
            network.load_state_dict(state)
            list(steps_of(network, own_data(self.context), batch=64))
            return [t.numpy() for t in network.state_dict().values()], 64, {"train_loss": 1.0}

    return GuardedClientApp(
        lambda context: Client(context).to_client(), list(mods), reports=folder, **settings
    )


def test_a_legacy_client_under_secure_sums_is_guarded_inside_of_the_mask(tmp_path):
    app = numpy_app(tmp_path / "guard", [secaggplus_mod])
    transcript = run(workflow_server(1, secure=True), app, tmp_path, model=apps.MODEL)
    assert transcript.rounds[0].aggregate is not None
    sent = [line["reasons"] for line in decisions(tmp_path / "guard") if line["decision"] == "sent"]
    assert len(sent) == 3
    assert all("before the first step" in reasons[-1] for reasons in sent)


def test_an_update_that_shows_examples_under_secure_sums_is_refused_as_any_other(tmp_path):
    app = numpy_app(tmp_path / "guard", [secaggplus_mod], mitigated=False, most=-1)
    transcript = run(workflow_server(1, secure=True), app, tmp_path, model=apps.MODEL)
    assert transcript.rounds[0].aggregate is None
    reason = "refused by the client's guard: the update would show examples"
    assert {d.reason for d in transcript.rounds[0].dropouts} == {reason}


def test_a_platform_guards_an_app_that_it_knows_nothing_of(tmp_path):
    steps = []
    inside = client(None, app=ClientApp(), steps=steps)
    server = message_server(1, MLP, crafting(bins))
    assert refused(run(server, guarded(inside, reports=tmp_path / "guard"), tmp_path).rounds[0])
    assert steps == []
