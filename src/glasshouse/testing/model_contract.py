"""Contract tests for models, shipped for authors of plug-ins.

Subclass :class:`ModelContract` (images) or :class:`TextModelContract` (sentences) as ``TestMyModel`` and
provide the fixture ``architecture``; the tests are inherited.
"""

import pytest
import torch
from torch import Tensor, nn

from glasshouse import registry
from glasshouse.interfaces import losses_of, mean_loss
from glasshouse.modalities.sentence import vocabulary_of
from glasshouse.models import build as models
from glasshouse.models.text.base import TextModel
from glasshouse.rng import Rng
from glasshouse.testing.attack_contract import check_repeatable
from glasshouse.testing.fixtures import to_provide
from glasshouse.testing.toys import random_sentences
from glasshouse.wire import Architecture, Batch

__all__ = ["ModelContract", "TextModelContract"]


class _WeightsContract:
    """Contract of any model's weights."""

    architecture = to_provide(Architecture)
    """Architecture of the model under test: small images and arguments, or a vocabulary."""

    @pytest.fixture
    def model(self, architecture: Architecture) -> nn.Module:
        """A new model in evaluation mode."""
        return models.build(architecture, rng=Rng.root(0, salt="contract")).eval()

    def test_same_stream_same_weights(self, architecture: Architecture) -> None:
        """The same stream gives the same initial weights; the global generator is not changed."""
        check_repeatable(lambda: models.state(models.build(architecture, rng=Rng.root(0, salt="contract"))))

    def test_weights_can_be_saved_and_loaded(self, architecture: Architecture, model: nn.Module) -> None:
        """Loading the state into another instance gives the same weights."""
        other = models.build(architecture, rng=Rng.root(1, salt="contract"))
        models.load(other, models.state(model))
        left, right = models.state(model), models.state(other)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


class ModelContract(_WeightsContract):
    """Contract of an image model: built by name, split into features and head, examples independent."""

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
        """The model has the sub-modules that attacks and defences refer to."""
        assert {"features", "head"} <= dict(model.named_children()).keys()

    def test_examples_do_not_meet_in_evaluation(self, model: nn.Module, batch: Batch) -> None:
        """In evaluation mode the logits of an example do not depend on the rest of its batch."""
        alone = torch.cat([model(batch.inputs[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(alone, model(batch.inputs), rtol=1e-4, atol=1e-5)

    def test_every_parameter_learns(self, model: nn.Module, batch: Batch) -> None:
        """The loss has a finite gradient for each parameter, and at least one is non-zero."""
        loss = nn.functional.cross_entropy(model.train()(batch.inputs), batch.labels)
        parameters = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        assert all(bool(g.isfinite().all()) for g in gradients)
        assert any(bool(g.any()) for g in gradients)

    def test_is_registered_with_a_card(self, architecture: Architecture) -> None:
        """``glasshouse list models`` can show it."""
        assert registry.card("models", architecture.name).summary


class TextModelContract(_WeightsContract):
    """Contract of a language model: access for attacks, and losses independent of batch and padding."""

    @pytest.fixture
    def batch(self, architecture: Architecture) -> Batch:
        """Three sentences of different lengths, with labels."""
        words = vocabulary_of(architecture.inputs)
        assert words is not None
        draws, places = torch.Generator().manual_seed(0), architecture.input_shape[0]
        inputs = random_sentences((2, 3, places - 2), words, draws, places=places)
        return Batch(inputs=inputs, labels=torch.randint(architecture.classes, (3,), generator=draws))

    def test_sentences_do_not_meet(self, model: TextModel, batch: Batch) -> None:
        """The loss of a sentence depends neither on other sentences nor on its padding."""
        together = losses_of(model, batch)
        assert together.shape == (3,)
        for i, real in enumerate(model.vocabulary.real(batch.inputs)):
            alone = batch.inputs[i : i + 1, : int(real.sum())]
            shorter = Batch(inputs=alone, labels=batch.labels[i : i + 1])
            torch.testing.assert_close(losses_of(model, shorter)[0], together[i])

    def test_the_first_layer_is_cut_where_attacks_look(self, model: TextModel, batch: Batch) -> None:
        """The first attention layer's inputs lie in the span of its gradient's rows; other tokens do not.

        In double precision: if attention is nearly uniform, the gradients of tokens differ only slightly.
        """
        model.double()
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        loss = mean_loss(model, batch)
        gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        places = torch.arange(batch.inputs.shape[1]).expand(batch.inputs.shape)
        _, sizes, basis = torch.linalg.svd(model.input_rows(0, gradients), full_matrices=False)
        basis = basis[sizes > 1e-12 * sizes[0]]

        @torch.no_grad()
        def far(tokens: Tensor) -> Tensor:
            x = model.anatomy.blocks[0].attended(model.embed(tokens, places))
            beside: Tensor = x - x @ basis.T @ basis
            share: Tensor = beside.norm(dim=2) / x.norm(dim=2)
            return share

        real = model.vocabulary.real(batch.inputs)
        last = real & ~real.roll(-1, 1)  # has no next token, so no loss
        read = real & ~last if model.predicts_tokens else real
        assert float(far(batch.inputs)[read].max()) < 1e-3
        absent = set(range(model.vocabulary.size)) - set(batch.inputs.flatten().tolist())
        assert float(far(torch.full_like(batch.inputs, max(absent))).min()) > 0.1

    def test_only_what_requires_a_gradient_learns(self, model: TextModel, batch: Batch) -> None:
        """Every trainable parameter has a finite gradient or none, and is in the state_dict."""
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        loss = mean_loss(model, batch)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        known: list[Tensor | None] = list(gradients)
        assert all(bool(g.isfinite().all()) for g in known if g is not None)
        assert any(bool(g.any()) for g in known if g is not None)
        assert parameters.keys() <= model.state_dict().keys()
