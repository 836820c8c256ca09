"""A data set by its name: ``digits``, or ``npz:``, ``folder:``, ``idx:``, ``cifar10:`` and where it lies."""

from dataclasses import replace

from glasshouse import registry
from glasshouse.data.base import DataSource, with_channels


def load(
    source: str, *, resize: int | None = None, channels: int | None = None, public: bool | None = None
) -> DataSource:
    """Read, check and checksum the data set called ``source``.

    Args:
        source: ``KIND`` or ``KIND:WHERE``; paths may begin with ``~`` and are relative to the current folder.
        resize: images are made ``resize × resize`` (bilinear, with antialiasing).
        channels: 3 repeats grey images in three channels, 1 turns colour into grey.
        public: anybody may see the images; None: as the kind of source says (only well-known sets are).

    Raises:
        UnknownName: no such kind of source.
        BadFile: the data cannot be read, or break a rule of ``glasshouse.data.base``.
        BadValue: the data cannot be read, or break a rule of ``glasshouse.data.base``.

    Examples:
        >>> source = load("digits")
        >>> source.input_shape, source.classes, {name: len(part) for name, part in source.splits.items()}
        ((1, 8, 8), 10, {'train': 1348, 'test': 449})
    """
    kind, _, where = source.partition(":")
    data_source: DataSource = registry.load("datasets", kind)(where, resize=resize)
    data_source = with_channels(data_source, channels)
    return data_source if public is None else replace(data_source, public=public)
