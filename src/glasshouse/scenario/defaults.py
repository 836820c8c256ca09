"""Defaults that depend on other settings: attacks and metrics of a scenario that names none."""

from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from pydantic import ValidationError

from glasshouse import registry
from glasshouse.errors import GlasshouseError, Problem
from glasshouse.outside.schema import freeze
from glasshouse.scenario.overrides import PathError
from glasshouse.scenario.problems import unmet
from glasshouse.scenario.spec import Scenario

AUTO: Final = "auto"
"""In the place of attacks: choose them."""

_PATHS: Final = ("attacks", "data.source")
"""Where these settings vary, the metrics of one cell would not fit the next."""


@final
@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The attacks that were chosen for a scenario, as tables, and how, in sentences."""

    attacks: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


class Choose(Protocol):
    """Chooses the attacks of a scenario without any; ``scored``: its metrics were asked for."""

    def __call__(self, scenario: Scenario, *, scored: bool) -> Chosen: ...


def fill_attacks(raw: dict[str, Any], choose: Choose) -> list[Problem]:
    """Write the attacks that ``choose`` finds into ``raw`` where it names none, or ``"auto"``.

    Nothing is written where attacks are an axis, or where the rest of the scenario is wrong: the problems of
    the rest are then reported elsewhere.
    """
    if raw.get("attacks", AUTO) not in (AUTO, []) or any(str(p).startswith("attacks") for p in _paths(raw)):
        return []
    raw["attacks"] = []
    try:
        bare = Scenario.model_validate(freeze(raw))
        chosen = choose(bare, scored=isinstance(raw.get("audit"), dict) and "metrics" in raw["audit"])
    except (ValidationError, PathError, GlasshouseError):
        return []
    if not chosen.attacks:
        return [unmet("attacks", "an attack that applies here", got="none", hint=" ".join(chosen.notes[1:]))]
    raw["attacks"] = list(chosen.attacks)
    raw.setdefault("audit", {})["auto"] = list(chosen.notes)
    return []


def _paths(raw: dict[str, Any]) -> list[Any]:
    """The paths of all axes."""
    zipped = raw.get("axes_zipped", [])
    tables = [raw.get("axes", {}), *(zipped if isinstance(zipped, list) else [])]
    return [path for table in tables if isinstance(table, dict) for path in table]


def fill_metrics(raw: dict[str, Any]) -> None:
    """Write the default ``audit.metrics`` of this scenario's attacks and data into ``raw``.

    Nothing is written where they are given, or where what they depend on is missing, unknown or an axis: the
    defaults of the table hold then.
    """
    audit, attacks = raw.setdefault("audit", {}), raw.get("attacks")
    varied = [path for path in raw.get("axes", {}) if str(path).startswith(_PATHS)]
    if not isinstance(audit, dict) or "metrics" in audit or varied or not isinstance(attacks, list):
        return
    names = [str(one.get("name") if isinstance(one, dict) else one) for one in attacks]
    known = registry.names("attacks")
    if not names or not all(name in known for name in names):
        return
    cards = [registry.card("attacks", name) for name in names]
    claims = [claim for card in cards for claim in card.claims or ("reconstruction",)]
    if metrics := dict.fromkeys(metric for claim in claims for metric in _metrics_of(claim, raw)):
        audit["metrics"] = list(metrics)


def _metrics_of(claim: str, raw: dict[str, Any]) -> tuple[str, ...]:
    """Metrics of a kind of claim; of the data's modality, where the kind leaves it to them."""
    named = registry.require_declaration("claims", claim, "metrics", tuple)
    return named or registry.require_declaration("modalities", _modality(raw), "metrics", tuple)


def _modality(raw: dict[str, Any]) -> str:
    """Name of the modality that this kind of data source declares; most read pictures."""
    data = raw.get("data", {})
    kind = str(data.get("source", "") if isinstance(data, dict) else "").partition(":")[0]
    if kind not in registry.names("datasets"):
        return "image"
    return registry.card("datasets", kind).details.get("modality", "image")
