"""Files that come with scikit-learn, found without importing it: the import takes a CPU second."""

from importlib.util import find_spec
from pathlib import Path

from glasshouse.errors import NotInstalled


def shipped_file(*parts: str) -> Path:
    """The file at ``parts`` below ``sklearn/datasets``.

    Raises:
        NotInstalled: scikit-learn, or this file of it, is missing.

    Examples:
        >>> shipped_file("images", "china.jpg").name
        'china.jpg'
    """
    spec = find_spec("sklearn")
    file = Path(spec.origin).parent.joinpath("datasets", *parts) if spec and spec.origin else None
    if file is None or not file.is_file():
        raise NotInstalled(
            "the built-in data",
            needs=f"the package scikit-learn with its file {parts[-1]}",
            got="no such file",
            fix="pip install --force-reinstall scikit-learn, or name other data in [data]",
        )
    return file
