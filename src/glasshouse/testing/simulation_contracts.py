"""Contract tests for the smaller plug-in kinds of a simulation, shipped for authors of plug-ins.

Subclass as ``TestMine`` and provide the fixtures; the tests are inherited.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glasshouse import registry
from glasshouse.attacks.property.properties import Property, Scene
from glasshouse.attacks.property.shadow import HONEST
from glasshouse.data.partition import Demand, Partitioner
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.setting import FederationProtocol
from glasshouse.interfaces import Behaviour, Traits, traits_of
from glasshouse.rng import Rng
from glasshouse.testing.attack_contract import check_repeatable
from glasshouse.testing.fixtures import to_provide
from glasshouse.testing.toys import CLASSES, SHAPE, toy
from glasshouse.wire import Architecture, Batch, Terms, Trained

ROOT = Rng.root(0, salt="contract")
Transform = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) in [0, 1] → images of the same shape."""


class PartitionerContract:
    """Contract of a partitioner of images into clients."""

    partitioner = to_provide(Partitioner)
    """The partitioner under test."""

    @pytest.fixture
    def clients(self) -> int:
        """Number of clients."""
        return 4

    @pytest.fixture
    def labels(self) -> Tensor:
        """Labels of the images to partition."""
        return torch.arange(200) % CLASSES

    def test_it_declares_what_it_asks_of_the_data(self, partitioner: Partitioner) -> None:
        """The demand is declared, so that ``glasshouse check`` can refuse data that are too small."""
        assert isinstance(partitioner.demand, Demand)

    def test_every_client_gets_images_and_no_image_goes_twice(
        self, partitioner: Partitioner, clients: int, labels: Tensor
    ) -> None:
        """One non-empty, disjoint index tensor per client, all within range."""
        parts = partitioner(labels, clients, rng=ROOT)
        assert len(parts) == clients
        assert all(len(part) > 0 and part.dtype == torch.int64 for part in parts)
        every = torch.cat(list(parts))
        assert len(set(every.tolist())) == len(every)
        assert 0 <= int(every.min()) <= int(every.max()) < len(labels)

    def test_same_rng_same_parts(self, partitioner: Partitioner, clients: int, labels: Tensor) -> None:
        """The result is deterministic; labels and the global generator are not changed."""
        before = labels.clone()
        check_repeatable(lambda: partitioner(labels, clients, rng=ROOT))
        assert torch.equal(labels, before)


class TransformContract:
    """Contract of a domain shift."""

    transform = to_provide(Transform)
    """The transform under test."""

    @pytest.fixture
    def images(self) -> Tensor:
        """Images that the transform accepts."""
        return torch.rand(3, 3, 16, 16, generator=ROOT.torch())

    def test_size_and_range_stay(self, transform: Transform, images: Tensor) -> None:
        """Shape, type and range are kept; the input is not changed."""
        before = images.clone()
        shifted = transform(images)
        assert (shifted.shape, shifted.dtype) == (images.shape, images.dtype)
        assert 0 <= float(shifted.min()) <= float(shifted.max()) <= 1
        assert torch.equal(images, before)

    def test_it_changes_each_image_by_itself(self, transform: Transform, images: Tensor) -> None:
        """Images are transformed independently, and something changes."""
        alone = torch.cat([transform(images[i : i + 1]) for i in range(len(images))])
        torch.testing.assert_close(alone, transform(images))
        assert not torch.equal(alone, images)

    def test_it_draws_nothing(self, transform: Transform, images: Tensor) -> None:
        """The result is deterministic and independent of the global generator."""
        check_repeatable(lambda: transform(images))


class BehaviourContract:
    """Contract of a client's deviating behaviour."""

    behaviour = to_provide(Behaviour)
    """The behaviour under test."""

    @pytest.fixture(params=["gradient", "delta", "parameters"])
    def train(self, request: pytest.FixtureRequest) -> LocalTraining:
        """The honest trainer, once for each kind of update."""
        return LocalTraining(kind=request.param, batch_size=6)

    @pytest.fixture
    def model(self) -> nn.Module:
        """A linear model of images 1 × 2 × 2."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

    @pytest.fixture
    def data(self) -> Batch:
        """Six private examples."""
        return Batch(inputs=torch.rand(6, 1, 2, 2, generator=ROOT.torch()), labels=torch.arange(6) % 3)

    def _send(self, behaviour: Behaviour, train: LocalTraining, model: nn.Module, data: Batch) -> Trained:
        return behaviour.deviate(train, round=0, rng=ROOT)(copy.deepcopy(model), data, rng=ROOT)

    def test_it_sends_what_an_honest_client_could(
        self, behaviour: Behaviour, train: LocalTraining, model: nn.Module, data: Batch
    ) -> None:
        """A finite update with the kind, names and shapes of an honest one; the data are unchanged."""
        before = data.inputs.clone(), data.labels.clone()
        sent, honest = self._send(behaviour, train, model, data), train(copy.deepcopy(model), data, rng=ROOT)
        assert sent.kind == honest.kind
        shapes, expected = ({n: t.shape for n, t in one.tensors.items()} for one in (sent, honest))
        assert shapes == expected
        assert all(bool(t.isfinite().all()) and not t.requires_grad for t in sent.tensors.values())
        assert torch.equal(data.inputs, before[0])
        assert torch.equal(data.labels, before[1])

    def test_same_rng_same_update(
        self, behaviour: Behaviour, train: LocalTraining, model: nn.Module, data: Batch
    ) -> None:
        """The same stream gives the same update."""
        check_repeatable(lambda: self._send(behaviour, train, model, data).tensors)


class ProtocolContract:
    """Contract of a protocol, tested on a toy federation of two rounds."""

    name = to_provide(str)
    """The registered name."""

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        """Settings of the toy federation: arguments of :func:`glasshouse.testing.toys.toy`."""
        return {}

    def test_it_declares_itself(self, name: str) -> None:
        """The protocol has traits, and a valid number of passes over a client's data."""
        assert isinstance(traits_of(name), Traits)
        protocol: FederationProtocol = registry.load("protocols", name)()
        passes = protocol.passes(3)
        assert passes is None or passes >= 1

    def test_everything_that_is_sent_is_recorded(self, name: str, settings: Mapping[str, Any]) -> None:
        """Every round has a finite broadcast and finite updates of a kind that the traits allow."""
        played = toy(protocol=name, rounds=2, **settings)
        rounds = played.view(client=None).rounds, played.view(round=1, client=None).rounds
        for (one,) in rounds:
            assert all(bool(t.isfinite().all()) for t in one.broadcast.tensors.values())
            assert one.updates
            for update in one.updates.values():
                assert update.kind in traits_of(name).kinds
                assert all(bool(t.isfinite().all()) for t in update.tensors.values())
        assert all(bool(t.isfinite().all()) for t in played.final.values())

    def test_same_seed_same_run(self, name: str, settings: Mapping[str, Any]) -> None:
        """The same seed gives the same final model."""
        check_repeatable(lambda: toy(protocol=name, rounds=2, **settings).final)


class PropertyContract:
    """Contract of a client property."""

    client_property = to_provide(Property)
    """The property under test."""

    @pytest.fixture
    def scene(self) -> Scene:
        """Eighty auxiliary examples and a challenge; clients hold five examples each."""
        draws = ROOT.torch()
        examples = Batch(inputs=torch.rand(81, *SHAPE, generator=draws), labels=torch.arange(81) % CLASSES)
        architecture = Architecture.of("mlp", SHAPE, CLASSES)
        terms = Terms(
            protocol="fedavg", architecture=architecture, sends="delta", clients=4, cohort=4, batch_size=5
        )
        return Scene(
            auxiliary=examples.pick(torch.arange(80)),
            challenge=examples.pick(torch.tensor([80])),
            terms=terms,
            examples=5,
        )

    def test_as_many_clients_with_it_as_without(self, client_property: Property, scene: Scene) -> None:
        """Equally many clients with and without it, each with as many examples as in the federation."""
        pairs = client_property.pairs(scene, count=7, rng=ROOT)
        assert pairs.negative.rows.shape == pairs.positive.rows.shape == (7, 5)
        assert pairs.negative is not pairs.positive or pairs.conduct != HONEST

    def test_same_rng_same_pairs(self, client_property: Property, scene: Scene) -> None:
        """The same stream gives the same clients."""
        check_repeatable(lambda: client_property.pairs(scene, count=7, rng=ROOT))
