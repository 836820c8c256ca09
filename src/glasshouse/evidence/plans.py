"""What an audit is about, as hashes: equal for attempts at the same question, however lucky."""

from collections.abc import Mapping
from typing import Any, Final, Literal, final

from pydantic import BaseModel, ConfigDict

from glasshouse.evidence import digests
from glasshouse.evidence.register import Digest, Planned, PlannedLine, Words

__all__ = ["Code", "Stamp", "planned_of"]

_LUCK: Final = ("name", "summary", "seed", "attack_seed", "policy", "tuning")
"""Parts of a scenario in which two attempts at the same question may differ."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


@final
class Code(_Strict):
    """The program that ran: version, commit of the source tree (may be empty), digest of its files."""

    glasshouse: Words
    commit: Words
    source: Digest


@final
class Stamp(_Strict):
    """``stamp.json``: what an audit is about, written before its simulation makes any truth.

    Attributes:
        audit: its name in the register.
        when: of this machine's clock, UTC.
        scenarios: hashes of settings and policies.
        code: what ran.
    """

    format: Literal[1]
    audit: Words
    when: Words
    scenarios: list[PlannedLine]
    code: Code


def planned_of(scenario: Mapping[str, Any]) -> Planned:
    """The hashes of a scenario: of its settings without luck and words, and of its policy.

    Args:
        scenario: with every default, as plain data or as its file ``scenario.toml`` reads.

    Raises:
        KeyError: a part is missing.

    Examples:
        >>> alike = {"seed": 0, "attack_seed": 0, "audit": {}, "policy": {}, "axes": {}}
        >>> one, other = planned_of({**alike, "name": "a"}), planned_of({**alike, "name": "b", "seed": 7})
        >>> one.scenario == other.scenario
        True
    """
    settings = {key: value for key, value in scenario.items() if key not in _LUCK}
    settings["audit"] = {key: value for key, value in scenario["audit"].items() if key != "auditor"}
    axes = settings.get("axes", {})
    settings["axes"] = {path: values for path, values in axes.items() if path not in ("seed", "attack_seed")}
    return Planned(
        name=scenario["name"],
        scenario=digests.of_value(_without_empty(settings)),
        policy=digests.of_value(_without_empty(scenario["policy"])),
        seed=scenario["seed"],
        attack_seed=scenario["attack_seed"],
    )


def _without_empty(value: Any) -> Any:
    """Empty tables and lists of tables have no lines in a TOML file, so they may not count."""
    if isinstance(value, Mapping):
        filled = {key: _without_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in filled.items() if inner not in ({}, [])}
    if isinstance(value, list | tuple):
        return [_without_empty(inner) for inner in value]
    return value
