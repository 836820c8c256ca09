"""Every registered partitioner, transform, behaviour, protocol and property keeps its contract."""

import pytest
import torch

from glasshouse import registry
from glasshouse.data.tables.cohort import TABLE
from glasshouse.testing.simulation_contracts import (
    BehaviourContract,
    PartitionerContract,
    PropertyContract,
    ProtocolContract,
    TransformContract,
)
from glasshouse.testing.toys import SHAPE
from glasshouse.wire import Batch

ARGUMENTS = {
    "dirichlet": {"alpha": 1.0},
    "intermittent": {"probability": 1.0},
    "attribute": {"label": 3},
}
PUBLIC = Batch(
    inputs=torch.rand(20, *SHAPE, generator=torch.Generator().manual_seed(0)), labels=torch.arange(20) % 10
)
LOGITS = {
    "sends": "logits", "public": PUBLIC, "sensitive": 12, "targets": 4, "examples": 4, "clients": 2,
    "learning_rate": 1e-2,
}  # fmt: skip
TREES = {
    "model": "boosted_trees", "array": (5,), "arguments": {"capacity": 2**17}, "sends": "document",
    "examples": 20,
}  # fmt: skip
DOCUMENTS = {
    name: {"model": model, "table": TABLE, "arguments": {"capacity": 2**20}, "sends": "document",
           "examples": 20}
    for name, model in (
        ("statistics", "no_model"), ("survival", "no_model"), ("newton", "coefficients"),
        ("xgb_histogram", "boosted_trees"),
    )
}  # fmt: skip
TOYS = {
    **DOCUMENTS,
    "vertical": {**DOCUMENTS["statistics"], "options": {"known": 8}},
    **dict.fromkeys(("xgb_bagging", "xgb_cyclic"), TREES),
    "dp_bagging": {**DOCUMENTS["xgb_histogram"], "options": {"trees": 1, "noise_multiplier": 1.0}},
    "transfer": {"model": "maui_cnn", "arguments": {"width": 4, "hidden": 32}, "trained": "head."},
    **dict.fromkeys(("dsfl", "fedgems", "fedmd"), LOGITS),
}


def ours(group):
    return [n for n in registry.names(group) if registry.entry(group, n).module.startswith("glasshouse.")]


def create(group, name):
    return registry.create(registry.load(group, name), ARGUMENTS.get(name, {}))


class TestPartitioner(PartitionerContract):
    @pytest.fixture(params=ours("partitioners"))
    def partitioner(self, request):
        return create("partitioners", request.param)


class TestTransform(TransformContract):
    @pytest.fixture(params=ours("transforms"))
    def transform(self, request):
        return create("transforms", request.param)


class TestBehaviour(BehaviourContract):
    @pytest.fixture(params=ours("behaviours"))
    def behaviour(self, request):
        return create("behaviours", request.param)


class TestProtocol(ProtocolContract):
    @pytest.fixture(params=ours("protocols"))
    def name(self, request):
        return request.param

    @pytest.fixture
    def settings(self, name):
        return TOYS.get(name, {})


class TestProperty(PropertyContract):
    @pytest.fixture(params=ours("properties"))
    def client_property(self, request):
        return create("properties", request.param)
