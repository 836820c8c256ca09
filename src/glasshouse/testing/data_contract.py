"""Contract tests for kinds of data sources, shipped for authors of plug-ins.

Subclass :class:`DataContract` (pictures), :class:`TextContract` (sentences) or :class:`ShapedContract`
(arrays and rows) as ``TestMyData`` and provide the fixtures ``name`` and ``where``; the tests are inherited.
"""

import pytest
import torch

from glasshouse import registry
from glasshouse.data.base import DataSource
from glasshouse.data.sources import load
from glasshouse.data.survey import survey, survey_of
from glasshouse.errors import GlasshouseError
from glasshouse.modalities.sentence import vocabulary_of
from glasshouse.testing.fixtures import to_provide

__all__ = ["DataContract", "ShapedContract", "TextContract"]


class _SourceContract:
    """Fixtures of a registered kind, and a test that it can be listed."""

    name = to_provide(str)
    """The registered name."""

    where = to_provide(str)
    """The part after the colon in ``data.source``: a path or a name; empty if the kind needs none."""

    @pytest.fixture
    def source(self, name: str, where: str) -> DataSource:
        """The loaded data set."""
        return load(f"{name}:{where}" if where else name)

    def test_is_registered_with_a_card(self, name: str) -> None:
        """``glasshouse list datasets`` can show it."""
        assert registry.card("datasets", name).summary


class DataContract(_SourceContract):
    """Contract of a registered kind of image data, tested on a small example."""

    def test_images_and_labels_are_well_formed(self, source: DataSource) -> None:
        """Pixels in [0, 1], one label below K per image, a train split, a name per class."""
        assert "train" in source.splits
        assert source.classes >= 2
        for part in source.splits.values():
            batch = part.batch()
            assert len(batch) > 0
            assert batch.inputs.dtype == torch.float32
            assert 0 <= float(batch.inputs.min()) <= float(batch.inputs.max()) <= 1
            assert 0 <= int(batch.labels.min()) <= int(batch.labels.max()) < source.classes
            assert tuple(batch.inputs.shape[1:]) == source.input_shape

    def test_reading_twice_gives_the_same_data(self, source: DataSource, name: str, where: str) -> None:
        """Reading a source twice gives the same checksum."""
        assert load(f"{name}:{where}" if where else name).checksum == source.checksum

    def test_what_is_counted_is_what_is_read(self, source: DataSource, name: str, where: str) -> None:
        """A source that counts itself (``counted_by``) tells the images, classes and shape that it reads."""
        if (counted := survey(f"{name}:{where}" if where else name)) is None:
            return
        read = survey_of(source)
        assert (counted.shape, counted.classes) == (read.shape, read.classes)
        found = {split: {k: n for k, n in numbers.items() if n} for split, numbers in counted.counts.items()}
        assert found == read.counts

    def test_images_can_be_resized(self, source: DataSource, name: str, where: str) -> None:
        """``resize`` gives square images of that side; labels and split sizes are unchanged."""
        other = load(f"{name}:{where}" if where else name, resize=12)
        assert other.input_shape == (source.input_shape[0], 12, 12)
        assert {n: len(p) for n, p in other.splits.items()} == {n: len(p) for n, p in source.splits.items()}
        assert other.checksum != source.checksum

    def test_a_source_that_is_not_there_is_an_error_in_four_parts(self, name: str) -> None:
        """A GlasshouseError with subject, needs, got and fix, not an exception of a library."""
        with pytest.raises(GlasshouseError) as caught:
            load(f"{name}:no-such-place/at-all")
        assert all((caught.value.subject, caught.value.needs, caught.value.got, caught.value.fix))


class TextContract(_SourceContract):
    """Contract of a registered kind of text data, tested on a small example."""

    def test_tokens_and_labels_are_well_formed(self, source: DataSource) -> None:
        """Tokens within the vocabulary, at least one word per sentence; one label below K per sentence."""
        words = vocabulary_of(source.inputs)
        assert words is not None
        assert "train" in source.splits
        for part in source.splits.values():
            batch = part.batch()
            assert len(batch) > 0
            assert batch.inputs.dtype == torch.int64
            assert 0 <= int(batch.inputs.min()) <= int(batch.inputs.max()) < words.size
            assert 0 <= int(batch.labels.min()) <= int(batch.labels.max()) < source.classes
            assert all(words.words(batch.inputs))

    def test_reading_twice_gives_the_same_data(self, source: DataSource, name: str, where: str) -> None:
        """Reading a source twice gives the same checksum; another tokenizer gives another one."""
        place = f"{name}:{where}" if where else name
        assert load(place).checksum == source.checksum
        assert load(place, tokenizer="bytes").checksum != source.checksum


class ShapedContract(_SourceContract):
    """Contract of a registered kind of arrays or rows of tables, tested on a small example with classes."""

    def test_examples_and_labels_are_well_formed(self, source: DataSource) -> None:
        """Every example fits the modality that the source declares; one label below K per example."""
        assert "train" in source.splits
        for part in source.splits.values():
            batch = part.batch()
            assert len(batch) > 0
            source.inputs.check(batch.inputs, subject=f"data '{source.name}'")
            assert len(batch.labels) == len(batch)
            assert 0 <= int(batch.labels.min()) <= int(batch.labels.max()) < source.classes

    def test_reading_gives_the_same_data_for_any_side(
        self, source: DataSource, name: str, where: str
    ) -> None:
        """Reading a source twice gives the same checksum; ``resize`` is for pictures and changes nothing."""
        place = f"{name}:{where}" if where else name
        assert load(place).checksum == source.checksum
        assert load(place, resize=12).checksum == source.checksum

    def test_a_source_that_is_not_there_is_an_error_in_four_parts(self, name: str) -> None:
        """A GlasshouseError with subject, needs, got and fix, not an exception of a library."""
        with pytest.raises(GlasshouseError) as caught:
            load(f"{name}:no-such-place/at-all")
        assert all((caught.value.subject, caught.value.needs, caught.value.got, caught.value.fix))
