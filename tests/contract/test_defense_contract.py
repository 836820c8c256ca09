"""Every registered defence keeps the contract of defences."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glasshouse import registry
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.protocols.documents.dp_bagging import document_of
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.interfaces import Defense, Trainer
from glasshouse.testing.contracts import DefenseContract
from glasshouse.wire import Batch, Update

SETTINGS = {
    "gaussian_noise": {"std": 0.1},
    "laplace_noise": {"scale": 0.1},
    "clip": {"norm": 0.01},
    "clip_layers": {"norm": 0.01},
    "clip_values": {"bound": 0.001},
    "percentile": {"percentile": 90.0, "bound": 0.01},
    "prune": {"share": 0.9},
    "sparse_vector": {"bound": 0.01},
    "quantise": {"bits": 3},
    "sign": {},
    "soteria": {"share": 0.5},
    "round_logits": {"decimals": 0},
    "top_k": {"k": 1},
    "temperature": {"value": 3.0},
    "label_only": {},
    "subsample": {"share": 0.5},
    "strip_trees": {"digits": 2},
    "gaussian_mechanism": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0},
    "dp_sgd": {"noise_multiplier": 1.0, "clip": 1.0},
}
ON_LOGITS = {"round_logits", "top_k", "temperature", "label_only"}
ON_DOCUMENTS = {"strip_trees"}


def test_every_registered_defence_is_here():
    assert set(SETTINGS) == set(registry.names("defenses"))


@pytest.mark.parametrize("name", sorted(SETTINGS))
class TestDefenses(DefenseContract):
    @pytest.fixture
    def defense(self, name: str) -> Defense:
        return registry.load("defenses", name)(**SETTINGS[name])

    @pytest.fixture
    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 12), nn.ReLU(),
                nn.Linear(12, 3),
            )  # fmt: skip

    @pytest.fixture
    def batch(self) -> Batch:
        generator = torch.Generator().manual_seed(0)
        return Batch(inputs=torch.rand(4, 1, 8, 8, generator=generator), labels=torch.tensor([0, 1, 2, 0]))

    @pytest.fixture
    def train(self) -> Trainer:
        return LocalTraining(kind="gradient", batch_size=2)

    @pytest.fixture
    def update(self, name: str, model: nn.Module, batch: Batch) -> Update:
        if name in ON_DOCUMENTS:
            document = tensor_of(document_of([], 2, 0.5), 2**12)
            return Update(round=0, client=1, kind="document", tensors={NAME: document}, examples=4)
        model.eval()
        logits = model(batch.inputs)
        if name in ON_LOGITS:
            tensors = {"logits": logits.detach()}
        else:
            gradients = torch.autograd.grad(F.cross_entropy(logits, batch.labels), list(model.parameters()))
            tensors = dict(zip((n for n, _ in model.named_parameters()), gradients, strict=True))
        kind = "logits" if name in ON_LOGITS else "gradient"
        return Update(round=0, client=1, kind=kind, tensors=tensors, examples=4)
