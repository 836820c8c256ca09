"""What every model promises. Shipped, so that other people's can be held to it.

Subclass as ``TestMyModel``, provide ``architecture``, and the promises come along as tests.
"""

import pytest
import torch
from torch import Tensor, nn

from glasshouse import registry
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Batch

__all__ = ["ModelContract"]


class ModelContract:
    """Promises of a model under audit: built by name, split into features and head, fair to each example."""

    @pytest.fixture
    def architecture(self) -> Architecture:
        """The model under test, with a small image size and small arguments."""
        raise NotImplementedError

    @pytest.fixture
    def model(self, architecture: Architecture) -> nn.Module:
        """Freshly built, in evaluation mode."""
        return models.build(architecture, rng=Rng.root(0, salt="contract")).eval()

    @pytest.fixture
    def batch(self, architecture: Architecture) -> Batch:
        """Three random images with labels."""
        draws = torch.Generator().manual_seed(0)
        return Batch(
            inputs=torch.rand((3, *architecture.input_shape), generator=draws),
            labels=torch.randint(architecture.classes, (3,), generator=draws),
        )

    def test_pixels_go_in_and_logits_come_out(
        self, model: nn.Module, batch: Batch, architecture: Architecture
    ) -> None:
        """(B, C, H, W) in [0, 1] → finite logits (B, K)."""
        logits = model(batch.inputs)
        assert logits.shape == (3, architecture.classes)
        assert bool(logits.isfinite().all())

    def test_is_split_into_features_and_head(self, model: nn.Module) -> None:
        """The parts that attacks and defenses name."""
        assert {"features", "head"} <= dict(model.named_children()).keys()

    def test_examples_do_not_meet_in_evaluation(self, model: nn.Module, batch: Batch) -> None:
        """In evaluation mode the logits of an example do not depend on who shares its batch."""
        alone = torch.cat([model(batch.inputs[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(alone, model(batch.inputs), rtol=1e-4, atol=1e-5)

    def test_every_parameter_learns(self, model: nn.Module, batch: Batch) -> None:
        """The loss has a finite gradient for each parameter, and some of them are not zero."""
        loss = nn.functional.cross_entropy(model.train()(batch.inputs), batch.labels)
        parameters = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        assert all(bool(g.isfinite().all()) for g in gradients)
        assert any(bool(g.any()) for g in gradients)

    def test_same_stream_same_weights(self, architecture: Architecture, model: nn.Module) -> None:
        """One stream, one set of initial weights; the global generator is left alone."""
        before = torch.get_rng_state()
        again = models.build(architecture, rng=Rng.root(0, salt="contract"))
        assert torch.equal(before, torch.get_rng_state())
        assert _same(models.state(model), models.state(again))

    def test_weights_can_be_saved_and_loaded(self, architecture: Architecture, model: nn.Module) -> None:
        """Another build with these weights computes the same."""
        other = models.build(architecture, rng=Rng.root(1, salt="contract"))
        models.load(other, models.state(model))
        assert _same(models.state(model), models.state(other))

    def test_is_registered_with_a_card(self, architecture: Architecture) -> None:
        """``glasshouse list models`` can show it."""
        assert registry.card("models", architecture.name).summary


def _same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
