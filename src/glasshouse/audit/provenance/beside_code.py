"""What a plug-in may have left beside its own code during a run, and must not find again in a replay.

A plug-in's package lies in sight of a replay, since it must run. What was put there since the run began may
be what the plug-in found in it: a truth under the name of weights. Code is shown all the same, because its
author may have repaired it, and said to be newer.
"""

import base64
import hashlib
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from importlib.metadata import FileHash, distribution, packages_distributions
from pathlib import Path
from typing import Final, final

from glasshouse.audit.provenance.stamp import STAMP
from glasshouse.store import read_json

__all__ = ["Beside", "begun", "beside_code"]

_CODE: Final = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


@final
@dataclass(frozen=True, kw_only=True)
class Beside:
    """What lies beside the code of a plug-in.

    Attributes:
        hide: the folders of its code that hold something newer than the run.
        show: what of these folders was there before, and the code.
        left: files that are newer than the run and no code; they are out of sight.
        code: files of code that are newer than the run; they are shown.
    """

    hide: tuple[Path, ...] = ()
    show: tuple[Path, ...] = ()
    left: tuple[Path, ...] = ()
    code: tuple[Path, ...] = ()

    @property
    def words(self) -> str:
        """What is to be said of it after how a process was sealed; empty: nothing is newer.

        Examples:
            >>> Beside(code=(Path("b.py"),)).words
            '; b.py is newer than the run and was shown'
        """
        count, said = len(self.left), ""
        if count:
            files = "1 file" if count == 1 else f"{count} files"
            is_newer = "is" if count == 1 else "are"
            said = f", and without {files} beside its code that {is_newer} newer than the run"
        if self.code:
            names = ", ".join(sorted({path.name for path in self.code})[:3])
            are_newer = "is newer" if len(self.code) == 1 else "are newer"
            were_shown = "was shown" if len(self.code) == 1 else "were shown"
            said += f"; {names} {are_newer}{', too,' if count else ' than the run'} and {were_shown}"
        return said


def begun(runs: Iterable[Path]) -> float:
    """When the first of these runs began, in seconds since 1970; minus infinity: one of them does not say."""
    stamps = [run / STAMP for run in runs]
    if not all(stamp.is_file() for stamp in stamps):
        return -math.inf
    whens = (str(read_json(stamp).get("when", "")) for stamp in stamps)
    return min((datetime.fromisoformat(when).timestamp() for when in whens), default=-math.inf)


def beside_code(kind: type, *, since: float) -> Beside:
    """What lies beside the code of a plug-in's class, by whether it was there before ``since``.

    Files that its package was installed with, byte for byte, were there before, whenever that was.

    Args:
        kind: the class.
        since: seconds since 1970.
    """
    package = kind.__module__.partition(".")[0]
    hide: list[Path] = []
    show: list[Path] = []
    left: list[Path] = []
    code: list[Path] = []
    for folder in _folders(package):
        before, newer = _sorted_by_age(folder, since, deep=_is_package(package))
        installed = _installed(package) if newer else {}
        newer = [path for path in newer if not _is_as_installed(path, installed)]
        own = [path for path in newer if path.name.endswith(_CODE)]
        others = [path for path in newer if path not in own]
        code += own
        # Compiled code is made anew from its source; whatever else stands in its place is not read.
        left += [path for path in others if path.suffix != ".pyc"]
        if others:
            hide.append(folder)
            show += [path for path in before if path not in others]
    return Beside(hide=tuple(hide), show=tuple(show), left=tuple(left), code=tuple(code))


def _is_package(name: str) -> bool:
    return bool(getattr(sys.modules.get(name), "__path__", ()))


def _folders(package: str) -> list[Path]:
    """The folders of a package; of a module outside any, the one that it lies in."""
    module = sys.modules.get(package)
    folders = [Path(place) for place in getattr(module, "__path__", ())]
    file = getattr(module, "__file__", None)
    return [one.resolve() for one in folders or ([Path(file).parent] if file else []) if one.is_dir()]


def _sorted_by_age(folder: Path, since: float, *, deep: bool) -> tuple[list[Path], list[Path]]:
    """Everything in a folder to show if it is not newer, and the files that are newer.

    Args:
        folder: of code.
        since: seconds since 1970; the time of a file is that of its last change of any kind, which whoever
            wrote it cannot set.
        deep: look into all folders; else into those that hold no code of others: a module lies beside whole
            packages.
    """
    shown, newer = [], []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            shown.append(path)
            newer += [path] if path.lstat().st_ctime >= since else []
        elif deep or not (path / "__init__.py").is_file():
            below, late = _sorted_by_age(path, since, deep=deep)
            shown += below if late else [path]
            newer += late
        else:
            shown.append(path)
    return shown, newer


def _installed(package: str) -> dict[Path, FileHash]:
    """The files that a package was installed with, and what they were then."""
    names = packages_distributions().get(package, [])
    entries = [entry for name in names for entry in distribution(name).files or []]
    return {Path(str(entry.locate())).resolve(): entry.hash for entry in entries if entry.hash is not None}


def _is_as_installed(path: Path, installed: Mapping[Path, FileHash]) -> bool:
    """Whether a file is, byte for byte, one of those."""
    if (known := installed.get(path)) is None:
        return False
    found = hashlib.new(known.mode, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode() == known.value
