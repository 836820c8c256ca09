"""Defaults that depend on other settings: what a scenario without ``audit.metrics`` is scored by."""

from typing import Any, Final

from glasshouse import registry

_PATHS: Final = ("attacks", "data.source")
"""Where these settings vary, the metrics of one cell would not fit the next."""


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
