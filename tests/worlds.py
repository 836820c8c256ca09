"""What several folders of tests play: attacks installed for a while, the audit of a capture."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from glasshouse import registry

LABELS_OF_A_CAPTURE = """
name = "mine"
[data]
auxiliary = 60
auxiliary_split = "train"
heldout = 30
heldout_split = "train"
[[attacks]]
name = "label_inference"
[audit]
metrics = ["label_accuracy"]
rounds = [0]
controls = false
"""


@contextmanager
def installed(
    place: Path,
    plugins: Path,
    module: str,
    attacks: Mapping[str, str],
    *,
    defenses: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Plug-ins of a module in ``plugins``, installed below ``place``, which becomes the working folder."""
    info = place / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = []
    for group, kinds in (("attacks", attacks), ("defenses", defenses)):
        lines += [f"[glasshouse.{group}]", *(f"{name} = {module}:{kind}" for name, kind in kinds.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))
    paths, folder = list(sys.path), Path.cwd()
    sys.path[:0] = [str(place), str(plugins)]
    registry.look_again()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(folder)
        sys.path[:] = paths
        registry.look_again()
