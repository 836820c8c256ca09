"""The scenarios and suites shipped with the package, as text; reading them imports nothing else."""

from importlib import resources

from glasshouse.errors import UnknownName
from glasshouse.registry import nearest_names

_PRESETS = resources.files("glasshouse.scenario") / "presets"


def presets() -> tuple[str, ...]:
    """Names of the shipped scenarios and suites, sorted."""
    return tuple(sorted(p.name.removesuffix(".toml") for p in _PRESETS.iterdir() if p.name.endswith(".toml")))


def preset_text(name: str) -> str:
    """The TOML of a preset.

    Raises:
        UnknownName: no such preset; the message suggests similar names.
    """
    if name not in presets():
        raise UnknownName(
            f"scenario '{name}'",
            needs="a preset, or a path that ends in .toml",
            got=f"'{name}'",
            fix=f"{nearest_names(name, presets())}; 'glasshouse list scenarios' shows all",
        )
    return (_PRESETS / f"{name}.toml").read_text(encoding="utf-8")
