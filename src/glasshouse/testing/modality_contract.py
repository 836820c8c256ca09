"""Contract tests for modalities, shipped for authors of plug-ins.

Subclass :class:`ModalityContract` as ``TestMyModality`` and provide the fixtures ``modality`` and
``examples``; the tests are inherited.
"""

import json
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.modalities.base import RUNGS, Modality, Wanted
from glasshouse.outside.schema import PluginFile, plugin_of
from glasshouse.rng import Rng
from glasshouse.testing.fixtures import to_provide

__all__ = ["ModalityContract"]


class ModalityContract:
    """Contract of a registered modality."""

    modality = to_provide(Modality)
    """A small description: some tens of numbers per example."""
    examples = to_provide(Tensor)
    """At least eight different valid examples, (N, ...)."""

    @pytest.fixture
    def auxiliary(self, examples: Tensor) -> Batch:
        """The examples with two classes, as an adversary's own."""
        return Batch(inputs=examples, labels=torch.arange(len(examples)) % 2)

    def test_it_is_registered_with_nouns_and_a_card(self, modality: Modality) -> None:
        """The class registered under its name is this one, and it has words for the report."""
        assert registry.load("modalities", modality.name) is type(modality)
        assert modality.noun
        assert modality.nouns
        assert registry.card("modalities", modality.name).summary

    def test_it_comes_back_from_a_file(self, modality: Modality) -> None:
        """Its fields are plain: as JSON they give an equal description."""
        fields = json.loads(json.dumps(asdict(modality)))
        stated = PluginFile(name=modality.name, fields=fields)
        assert plugin_of("modalities", stated, subject="contract", fix="correct it") == modality
        assert hash(modality) == hash(plugin_of("modalities", stated, subject="contract", fix="correct it"))

    def test_examples_are_valid_and_others_are_not(self, modality: Modality, examples: Tensor) -> None:
        """Valid examples pass; another shape, another type and (of numbers) NaN are refused in words."""
        modality.check(examples, subject="contract")
        modality.check(modality.blank(2), subject="contract")
        with pytest.raises(BadValue):
            modality.check(examples[..., :-1], subject="contract")
        other = torch.int64 if modality.dtype.is_floating_point else torch.float32
        with pytest.raises(BadValue):
            modality.check(examples.to(other), subject="contract")
        if modality.dtype.is_floating_point:
            with pytest.raises(BadValue):
                modality.check(examples * torch.nan, subject="contract")

    def test_projection_ends_in_valid_examples_and_leaves_them(
        self, modality: Modality, examples: Tensor
    ) -> None:
        """What is projected is valid, and valid examples stay as they are."""
        wild = modality.probes(16, torch.Generator().manual_seed(0))
        wild = wild * 3 - 1 if modality.continuous else wild + 5
        modality.check(modality.project(wild), subject="contract")
        torch.testing.assert_close(modality.project(examples), examples)
        torch.testing.assert_close(modality.relax(examples), examples)

    def test_distance_is_a_table_of_zeros_for_equal_ones(self, modality: Modality, examples: Tensor) -> None:
        """(R, N) float64: symmetric, finite, never negative; an example is nearest to itself."""
        table = modality.distance(examples[:3], examples)
        assert table.shape == (3, len(examples))
        assert table.dtype == torch.float64
        assert bool(table.isfinite().all())
        assert float(table.min()) >= 0
        torch.testing.assert_close(table[:, :3], modality.distance(examples[:3], examples[:3]).T)
        assert bool((table.argmin(1) == torch.arange(3)).all())
        assert float(table[:, :3].diagonal().max()) <= modality.same
        assert modality.same <= modality.near
        assert modality.distance(examples[:0], examples).shape == (0, len(examples))

    def test_likenesses_are_tables_in_which_an_example_is_most_like_itself(
        self, modality: Modality, examples: Tensor
    ) -> None:
        """Each form is (R, N) and finite, and no other example is more like than the example itself."""
        for form, table in modality.likenesses(examples[:3], examples).items():
            assert form
            assert table.shape == (3, len(examples))
            assert bool(table.isfinite().all())
            assert bool((table[:, :3].diagonal() >= table.amax(1) - 1e-9).all())

    def test_examples_are_apart_as_a_whole_and_in_parts(self, modality: Modality, examples: Tensor) -> None:
        """The first table is that of whole examples; each is (B, B), symmetric, and 0 for equal examples."""
        whole, *parts = modality.apart(examples)
        torch.testing.assert_close(whole, modality.distance(examples, examples))
        for table in parts:
            assert table.shape == whole.shape
            assert bool((table >= 0).all())
            torch.testing.assert_close(table, table.T)
            assert float(table.diagonal().max()) <= modality.same

    def test_nulls_climb_the_ladder_and_guess_valid_examples(
        self, modality: Modality, auxiliary: Batch
    ) -> None:
        """One null at least on each of the first three rungs; guesses are valid, repeatable, and as many."""
        nulls = modality.nulls()
        assert {"nothing", "domain", "label"} <= {null.knows for null in nulls} <= set(RUNGS)
        assert len({null.name for null in nulls}) == len(nulls)
        for null in nulls:
            labels = auxiliary.labels[:5] if null.knows == "label" else None
            wanted = Wanted(count=5, labels=labels)
            one, again, other = (null.guess(auxiliary, wanted, Rng.root(seed)) for seed in (0, 0, 1))
            assert len(one) == 5
            modality.check(one.inputs, subject=f"null '{null.name}'")
            assert torch.equal(one.inputs, again.inputs)
            if null.steady:
                torch.testing.assert_close(one.inputs, other.inputs)
            if labels is not None:
                assert torch.equal(one.labels, labels)

    def test_an_example_can_be_shown(self, modality: Modality, examples: Tensor) -> None:
        """As pixels (H, W, 1 or 3) in [0, 1], or as text."""
        shown = modality.display(examples[0])
        assert (shown.pixels is None) == bool(shown.text)
        if shown.pixels is not None:
            assert shown.pixels.ndim == 3
            assert shown.pixels.shape[2] in (1, 3)
            assert 0 <= float(shown.pixels.min()) <= float(shown.pixels.max()) <= 1
