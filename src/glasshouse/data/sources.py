"""Load a data set by name: ``digits``, or a kind such as ``npz:``, ``folder:`` or ``text:`` with its path."""

from dataclasses import replace
from typing import Final

from glasshouse import registry
from glasshouse.data.base import DataSource, with_channels
from glasshouse.data.texts import Texts, tokenized
from glasshouse.tokens.tokenizers import read_tokenizer

LENGTH: Final = 32
"""Default maximal length of sentences, in tokens."""


def load(
    source: str,
    *,
    resize: int | None = None,
    channels: int | None = None,
    public: bool | None = None,
    tokenizer: str = "words",
    length: int = LENGTH,
) -> DataSource:
    """Read, check and checksum the data set called ``source``.

    Args:
        source: ``KIND`` or ``KIND:WHERE``; paths may begin with ``~`` and are relative to the current folder.
        resize: resize images to ``resize × resize`` (bilinear, with antialiasing).
        channels: 3 repeats grey images in three channels, 1 converts colour to grey.
        public: whether the examples are public; None: as the kind of source declares (well-known sets only).
        tokenizer: tokenizer of sentences; see :mod:`glasshouse.tokens.tokenizers`.
        length: maximal length of sentences, in tokens; longer ones are cut.

    Raises:
        UnknownName: no such kind of source.
        BadFile: the data cannot be read, or violate a rule of ``glasshouse.data.base``.
        BadValue: the data cannot be read, or violate a rule of ``glasshouse.data.base``.

    Examples:
        >>> source = load("digits")
        >>> source.input_shape, source.classes, {name: len(part) for name, part in source.splits.items()}
        ((1, 8, 8), 10, {'train': 1348, 'test': 449})
    """
    kind, _, where = source.partition(":")
    read: DataSource | Texts = registry.load("datasets", kind)(where, resize=resize)
    if isinstance(read, Texts):
        data_source = tokenized(read, read_tokenizer(tokenizer), length=length)
    else:
        data_source = with_channels(read, channels)
    return data_source if public is None else replace(data_source, public=public)
