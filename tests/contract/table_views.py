"""What a server sees of one client with rows of the made-up clinic: a gradient, or documents."""

from dataclasses import replace

import torch
import xgboost

from glasshouse.data.tables.clinic import TABLE, clinic
from glasshouse.examples import Batch
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.interfaces import mean_loss
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Terms, Update

SOURCE = clinic("")
ROWS = SOURCE.splits["train"].batch()


def _view(name: str, arguments: dict, update: Update, protocol: str, sends) -> View:
    architecture = Architecture(name=name, inputs=SOURCE.inputs, task=SOURCE.task, arguments=arguments)
    broadcast = Broadcast(
        round=0, architecture=architecture, tensors=state(build(architecture, rng=Rng.root(0)))
    )
    size = update.examples
    terms = Terms(
        protocol=protocol, architecture=architecture, sends=sends, clients=1, cohort=1, batch_size=size
    )
    return View(
        terms=terms,
        threat=Threat(),
        rounds=(RoundView(round=0, broadcast=broadcast, updates={0: update}),),
        grants=Grants(auxiliary=ROWS.pick(torch.arange(200, 500))),
    )


def of_gradient(count: int = 4) -> View:
    """The gradient of a small network on ``count`` rows."""
    arguments = {"hidden": "64"}
    architecture = Architecture(name="mlp", inputs=SOURCE.inputs, task=SOURCE.task, arguments=arguments)
    model = build(architecture, rng=Rng.root(0)).eval()
    batch: Batch = ROWS.pick(torch.arange(count))
    parameters = dict(model.named_parameters())
    gradient = torch.autograd.grad(mean_loss(model, batch), list(parameters.values()))
    sent = dict(zip(parameters, gradient, strict=True))
    update = Update(round=0, client=0, kind="gradient", tensors=sent, examples=count)
    return _view("mlp", arguments, update, "fedsgd", "gradient")


def of_trees(count: int = 60) -> View:
    """The trees that a client boosts from nothing on ``count`` rows."""
    batch = ROWS.pick(torch.arange(count))
    how = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
    booster = xgboost.train(how, xgboost.DMatrix(batch.inputs.numpy(), batch.labels.numpy()), 2)
    tensors = {NAME: tensor_of(bytes(booster.save_raw("json")), 2**17)}
    update = Update(round=0, client=0, kind="document", tensors=tensors, examples=count)
    return _view("boosted_trees", {"capacity": 2**17}, update, "xgb_bagging", "document")


def of_private_trees(count: int = 60) -> View:
    """Two differentially private trees on ``count`` rows, with a row in question."""
    played = toy(
        model="boosted_trees", table=SOURCE.inputs, arguments={"capacity": 2**17}, protocol="dp_bagging",
        clients=1, examples=count, sends="document", options={"trees": 2, "noise_multiplier": 0.5},
    )  # fmt: skip
    grants = Grants(auxiliary=ROWS.pick(torch.arange(200, 500)), challenge=ROWS.pick(torch.arange(1)))
    return cut(played.transcript, threat=Threat(), grants=grants, own={}, memory={}, rounds=(0,), client=0)


def of_common_trees() -> View:
    """What a client sees of four rounds of bagging with two others."""
    played = toy(
        model="boosted_trees", table=SOURCE.inputs, arguments={"capacity": 2**17}, protocol="xgb_bagging",
        clients=3, examples=20, rounds=4, sends="document", options={"max_depth": 2, "base_score": 0.5},
    )  # fmt: skip
    threat = Threat(role="client", sees=frozenset({"broadcast"}), client=0)
    return cut(played.transcript, threat=threat, grants=Grants(), own={}, memory={})


def of_members() -> View:
    """Trees that a client boosted, with a row in question: the client's first one."""
    view = of_trees()
    return replace(view, grants=replace(view.grants, challenge=ROWS.pick(torch.arange(1))))


def of_statistics(count: int = 12) -> View:
    """Two rounds of statistics of one site, which one person joined in between."""
    played = toy(
        model="no_model", table=TABLE, arguments={"capacity": 2**17}, protocol="statistics", clients=1,
        examples=count, rounds=2, sends="document", options={"joins": 1},
    )  # fmt: skip
    return cut(
        played.transcript, threat=Threat(), grants=Grants(), own={}, memory={}, rounds=(0, 1), client=None
    )
