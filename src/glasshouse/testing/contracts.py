"""Contract tests for defences, shipped for authors of plug-ins.

Subclass as ``TestMyDefense`` and provide the fixtures; the tests are inherited.
"""

import copy
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from glasshouse import registry
from glasshouse.interfaces import Defense, Trainer
from glasshouse.rng import Rng
from glasshouse.testing.attack_contract import check_repeatable
from glasshouse.testing.fixtures import to_provide
from glasshouse.wire import Batch, Update

__all__ = ["DefenseContract", "Send"]

Send = Callable[[], Mapping[str, Tensor]]


class DefenseContract:
    """Contract of a defence that acts at any of the three places."""

    defense = to_provide(Defense)
    """The defence under test."""

    update = to_provide(Update)
    """An update that the defence accepts; for a local defence, with the shapes that training sends."""

    batch = to_provide(Batch)
    """The private examples behind the update."""

    model = to_provide(nn.Module)
    """The model received by the client."""

    train = to_provide(Trainer)
    """The honest trainer; used by local defences only."""

    @pytest.fixture
    def send(self, defense: Defense, update: Update, batch: Batch, model: nn.Module, train: Trainer) -> Send:
        """A function that returns what the client sends with seed 0 and only this defence."""

        def sent() -> Mapping[str, Tensor]:
            rng = Rng.root(0)
            if defense.place == "update":
                return defense.update(update, rng=rng).tensors
            if defense.place == "gradient":
                return defense.gradient(update, batch, model, rng=rng).tensors
            return defense.local(train)(copy.deepcopy(model), batch, rng=rng).tensors

        return sent

    def test_finite_and_of_the_same_shape(self, send: Send, update: Update) -> None:
        """Names, shapes and dtypes are unchanged; every entry is finite."""
        sent = send()
        assert sent.keys() == update.tensors.keys()
        for name, t in sent.items():
            assert t.shape == update.tensors[name].shape
            assert t.dtype == update.tensors[name].dtype
            assert t.isfinite().all()
            assert not t.requires_grad

    def test_leaves_its_input_alone(self, send: Send, update: Update, batch: Batch, model: nn.Module) -> None:
        """Update, batch and model are not changed."""
        tensors = {**update.tensors, "inputs": batch.inputs, "labels": batch.labels, **model.state_dict()}
        before = {name: t.clone() for name, t in tensors.items()}
        mode = [m.training for m in model.modules()]
        send()
        assert all(torch.equal(before[name], t) for name, t in tensors.items())
        assert mode == [m.training for m in model.modules()]
        assert all(p.grad is None and p.requires_grad for p in model.parameters())

    def test_same_rng_same_result(self, send: Send) -> None:
        """The same stream gives the same result; the global generator is neither used nor changed."""
        check_repeatable(send)

    def test_describes_itself_completely(self, defense: Defense) -> None:
        """The description contains a registered name, the place, and every setting."""
        mechanism = defense.describe()
        assert registry.load("defenses", mechanism.name) is type(defense)
        assert mechanism.place == defense.place
        for name in registry.arguments(type(defense)):
            value = getattr(defense, name)
            assert value is None or mechanism.parameters[name] == value
        assert all(isinstance(v, float | int | str | bool) for v in mechanism.parameters.values())

    def test_has_a_card(self, defense: Defense) -> None:
        """``glasshouse list`` can show it."""
        assert registry.card("defenses", defense.describe().name).summary
