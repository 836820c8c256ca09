"""``glasshouse new``: the package that a page of docs/plugins shows, under a name of your own."""

import keyword
import re
import tomllib
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from glasshouse.cli.parts.output import say
from glasshouse.errors import BadValue, UnknownName
from glasshouse.registry import names, nearest_names

FILE = re.compile(r"^\*\*`([\w./-]+)`\*\*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A file on a page: its name in bold, then its text between fences."""
PROJECT = "pyproject.toml"


def new(
    kind: Annotated[str, typer.Argument(help="attack, defence, metric, ...: a page of docs/plugins")],
    name: Annotated[str, typer.Argument(help="what a scenario will call it, e.g. my_attack")],
) -> int:
    """Start a plug-in of KIND: a package named NAME that works, tested by its contract, to be changed."""
    pages = read_pages()
    if kind not in pages:
        raise UnknownName(
            f"kind '{kind}'",
            needs=f"one of {', '.join(pages)}",
            got=f"'{kind}'",
            fix=nearest_names(kind, tuple(pages)),
        )
    place = Path(name)
    if place.exists():
        raise BadValue(
            f"package '{name}'", needs="a folder that does not exist yet", got=f"{place}", fix="another name"
        )
    # The very package that the page shows, so that what is written is what was tested.
    files = package_files(pages[kind], name)
    place.mkdir()
    for file, text in files.items():
        (place / file).write_text(text, encoding="utf-8")
    say(f"{place}: {', '.join(files)}")
    say(f"  cd {name}")
    say("  pip install -e . 'glasshouse[test]'")
    say(f"  python -m pytest test_{name}.py")
    say(f"  glasshouse show {name}")
    return 0


def read_pages() -> dict[str, str]:
    """The pages that show a package, by kind; a wheel carries them, a checkout has them in docs."""
    package = resources.files("glasshouse")
    carried = package / "pages"
    folder = carried if carried.is_dir() else Path(str(package)).parents[1] / "docs" / "plugins"
    found = {
        page.name.removesuffix(".md"): page.read_text(encoding="utf-8")
        for page in folder.iterdir()
        if page.name.endswith(".md")
    }
    return dict(sorted(found.items()))


def package_files(page: str, name: str = "") -> dict[str, str]:
    """The files of a page by name, and under ``name`` wherever they show the page's own.

    Raises:
        BadValue: ``name`` is no name of a module, or is taken.
    """
    files = dict(FILE.findall(page))
    if not name:
        return files
    registered = tomllib.loads(files[PROJECT])["project"]["entry-points"]
    group, entries = next(iter(registered.items()))
    shown = next(iter(entries))
    _check_name(name, group=group.removeprefix("glasshouse."))
    # A page has one name, in four spellings: of the module, the package, the class and the headings. It is
    # that of the first plug-in; where a package has several, the names of the others begin with it.
    spellings = {spell(shown): spell(name) for spell in (str, _dashed, _joined, _spaced)}
    renamed = {}
    for file, text in files.items():
        for old, fresh in spellings.items():
            file, text = file.replace(old, fresh), text.replace(old, fresh)
        renamed[file] = text
    return renamed


def _check_name(name: str, *, group: str) -> None:
    """Refuse what Python cannot import, and names that a module or a plug-in has already."""
    valid = re.fullmatch(r"[a-z][a-z0-9_]*", name) and not keyword.iskeyword(name)
    if valid and name not in names(group) and find_spec(name) is None:
        return
    got = "the name of something installed" if valid else f"'{name}'"
    raise BadValue(
        f"package '{name}'",
        needs="small letters, digits and underscores, and a name that nothing has yet",
        got=got,
        fix="e.g. my_attack",
    )


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _joined(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _spaced(name: str) -> str:
    return name.replace("_", " ").capitalize()
