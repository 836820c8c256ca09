"""Data sets addressed by name: the file names to search for, and the sources of their public files.

A name is searched for in the folders of the environment variable ``GLASSHOUSE_DATA``, in order, and then
among files downloaded before. A name may stand for the original data or for a subset: the first existing one
is read, its file is named in the report, and its checksum salts the run. See docs/decisions/0105.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from glasshouse.cache import folder as cache_folder


@final
@dataclass(frozen=True, kw_only=True)
class Download:
    """One public file.

    Attributes:
        url: address of the file.
        sha256: checksum of the file.
        size: size in bytes; never more are read.
        members: paths of the archive members to keep; empty: keep the file itself.
    """

    url: str
    sha256: str
    size: int
    members: tuple[str, ...] = ()

    def file_names(self) -> tuple[str, ...]:
        """Names of the stored files."""
        return tuple(path.rpartition("/")[2] for path in self.members or (self.url,))


@final
@dataclass(frozen=True, kw_only=True)
class NamedData:
    """A data set with a name of its own.

    Attributes:
        name: registered name.
        places: ``KIND:PATH`` below a folder of ``GLASSHOUSE_DATA``; the first existing one is read.
        obtain: how to get the data by hand, without a connection or a public source.
        terms: authors and terms of use.
        public: the images are public; the report blurs those of other data sets.
        kind: kind of source that reads the downloaded files.
        downloads: the public files; empty: no stable public address.
        counts: images of each class in the downloaded files, by split.
        shape: (C, H, W) of the downloaded images.
    """

    name: str
    places: tuple[str, ...]
    obtain: str
    terms: str
    public: bool = False
    kind: str = ""
    downloads: tuple[Download, ...] = ()
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    shape: tuple[int, int, int] = (1, 1, 1)

    @property
    def fetched(self) -> Path:
        """Folder of the downloaded files."""
        return cache_folder() / "data" / self.name

    def complete(self) -> bool:
        """Whether every public file has been downloaded."""
        files = [name for part in self.downloads for name in part.file_names()]
        return bool(files) and all((self.fetched / name).is_file() for name in files)


_BATCHES: Final = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_ARCHIVE: Final = Download(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    size=170_498_071,
    members=tuple(f"cifar-10-batches-py/{name}" for name in _BATCHES),
)
_CIFAR10: Final = NamedData(
    name="cifar10",
    places=("npz:cifar10_12k.npz", "cifar10:cifar-10-batches-py"),
    obtain=f"unpack {_ARCHIVE.url} there (folder cifar-10-batches-py)",
    terms="Krizhevsky 2009, Learning multiple layers of features; no licence stated",
    public=True,
    kind="cifar10",
    downloads=(_ARCHIVE,),
    counts={"train": (5000,) * 10, "test": (1000,) * 10},
    shape=(3, 32, 32),
)
_MNIST: Final = (
    ("train-images-idx3", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
_MNIST_URL: Final = "https://ossci-datasets.s3.amazonaws.com/mnist/{}-ubyte.gz"

NAMED: Final[Mapping[str, NamedData]] = {
    data.name: data
    for data in (
        _CIFAR10,
        replace(
            _CIFAR10,
            name="cifar10_full",
            places=("folder:cifar10", "zip:cifar10_folders.zip", "cifar10:cifar-10-batches-py"),
        ),
        NamedData(
            name="mnist",
            places=("npz:mnist_10k.npz", "idx:MNIST/raw", "idx:mnist", "idx:mnist-idx"),
            obtain="put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the two t10k files "
            "into its folder 'mnist'",
            terms="LeCun et al. 1998, the MNIST database; CC BY-SA 3.0",
            public=True,
            kind="idx",
            downloads=tuple(
                Download(url=_MNIST_URL.format(name), sha256=sha256, size=size)
                for name, size, sha256 in _MNIST
            ),
            counts={
                "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
                "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
            },
            shape=(1, 28, 28),
        ),
        NamedData(
            name="orl",
            places=("npz:orl_faces_64.npz",),
            obtain="get 'The Database of Faces' of AT&T Laboratories Cambridge (40 people, 10 photos each), "
            "crop to 64 × 64 grey and store train_images and train_labels (the person, 0 to 39) in it",
            terms="Samaria and Harter 1994; credit AT&T Laboratories Cambridge",
        ),
        NamedData(
            name="lfw",
            places=("folder:lfw_faces_64", "zip:lfw_faces_64.zip"),
            obtain="get Labeled Faces in the Wild (deep-funneled), keep the people with two or more photos, "
            "cut and resize to 64 × 64, one folder per person",
            terms="Huang et al. 2007, Labeled Faces in the Wild; for research",
        ),
        NamedData(
            name="chest_xray",
            places=("npz:chest_xray_28.npz", "npz:pneumoniamnist.npz"),
            obtain="get pneumoniamnist.npz from https://medmnist.com and put it there",
            terms="PneumoniaMNIST of MedMNIST v2 (Yang et al. 2023), CC BY 4.0",
        ),
        NamedData(
            name="adult",
            places=("adult:adult.csv", "adult:adult/adult.csv"),
            obtain="get adult.data of https://archive.ics.uci.edu/dataset/2/adult, write the names of its 15 "
            "columns above it (race as ethnicity), and put it there as adult.csv",
            terms="Becker and Kohavi 1996, Adult, UCI Machine Learning Repository; CC BY 4.0",
        ),
        NamedData(
            name="imagenet",
            places=("folder:imagenet_700", "zip:imagenet_700.zip"),
            obtain="get pictures of https://image-net.org, cut to 224 × 224, one folder per class",
            terms="Russakovsky et al. 2015, ImageNet; for non-commercial research",
        ),
    )
}
"""All named data sets, except ``digits``, which comes with the package."""


def folders() -> tuple[Path, ...]:
    """The folders in ``GLASSHOUSE_DATA``, separated as in ``PATH``."""
    places_named = os.environ.get("GLASSHOUSE_DATA", "").split(os.pathsep)
    return tuple(Path(part).expanduser() for part in places_named if part)


def find(name: str) -> str | None:
    """``KIND:PATH`` of the data set ``name`` in ``GLASSHOUSE_DATA`` or among downloads; None: missing."""
    data = NAMED[name]
    for root in folders():
        for place in data.places:
            kind, _, path = place.partition(":")
            if (root / path).exists():
                return f"{kind}:{root / path}"
    return f"{data.kind}:{data.fetched}" if data.complete() else None
