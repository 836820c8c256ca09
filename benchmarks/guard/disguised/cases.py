"""The attacks and settings that are disguised."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """One attack in one setting.

    Attributes:
        title: of the attack and its variant.
        attack: registered name.
        settings: of the attack.
        model: registered name of the agreed architecture.
        arguments: of the model.
        nested: rows are bins of rising thresholds; see ``evasions.Material``.
        agreed: the clients agreed to the structure that the attack sends.
        protocol: of the federation.
        rounds: number of rounds on the same batch; the model of any round may be refused.
    """

    title: str
    attack: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "mlp"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    nested: bool = False
    agreed: bool = False
    protocol: str = "fedsgd"
    rounds: int = 1


_MLP = {"hidden": "1024,32"}
_AUTOENCODER = {"steps": 300}
_MAUI: dict[str, Any] = {
    "attack": "maui",
    "model": "maui_cnn",
    "arguments": {"width": 16, "hidden": 512, "poolings": 0},
    "protocol": "transfer",
}
_SCALE: dict[str, Any] = {"attack": "scale_mia", "model": "scale_mia_cnn", "arguments": {"bins": 512}}
CASES: Final = (
    Case(title="Robbing the Fed", attack="robbing_the_fed", settings={"bins": 512}, nested=True),
    Case(
        title="Robbing the Fed, sparse", attack="robbing_the_fed", settings={"bins": 512, "variant": "sparse"}
    ),
    Case(title="LOKI", attack="loki", nested=True),
    Case(
        title="Robbing the Fed, structure agreed",
        attack="robbing_the_fed",
        settings={"bins": 512},
        nested=True,
        agreed=True,
    ),
    Case(
        title="Robbing the Fed, sparse, structure agreed",
        attack="robbing_the_fed",
        settings={"bins": 512, "variant": "sparse"},
        agreed=True,
    ),
    Case(title="LOKI, structure agreed", attack="loki", nested=True, agreed=True),
    Case(title="Scale-MIA", settings={"training": _AUTOENCODER}, nested=True, **_SCALE),
    Case(
        title="Scale-MIA, paper's design",
        settings={"training": _AUTOENCODER, "design": "paper"},
        nested=True,
        **_SCALE,
    ),
    Case(title="Curious Abandon Honesty", attack="cah", arguments=_MLP),
    Case(title="Fishing, class", attack="fishing", settings={"strategy": "class"}),
    Case(title="Fishing, feature", attack="fishing", settings={"strategy": "feature"}),
    Case(title="Fishing, rounds", attack="fishing", settings={"strategy": "rounds"}, rounds=8),
    Case(
        title="Maui, calibrated head",
        settings={"head": {"mode": "quantile"}, "inversion": {"invert": "none"}},
        **_MAUI,
    ),
    Case(
        title="Maui, head of examples",
        settings={"head": {"mode": "exemplars"}, "inversion": {"invert": "none"}},
        **_MAUI,
    ),
)
