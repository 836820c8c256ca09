"""The audit in which the cheats run between honest attacks, and what its result says of each."""

from pathlib import Path

from glasshouse.audit.run import audit
from glasshouse.results.records import Finding, Result
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite

CHEATS = {
    "hundreds_of_candidates": "HundredsOfCandidates",
    "fixed_best_image": "FixedBestImage",
    "undeclared_grants": "UndeclaredGrants",
    "copies_claims": "CopiesClaims",
    "two_of_eight": "TwoOfEight",
    "silence": "Silence",
    "edits_in_place": "EditsInPlace",
    "remembers_victims": "RemembersVictims",
    "other_rounds": "OtherRounds",
    "searches_the_disk": "SearchesTheDisk",
    "reseeds": "Reseeds",
    "patches_the_scorer": "PatchesTheScorer",
}
PLUGINS = Path(__file__).parent / "plugins"
RAW = {
    "name": "cheated",
    "data": {"auxiliary": 120, "heldout": 60, "examples": 1},
    "model": {"name": "mlp"},
    "federation": {"clients": 8, "batch_size": 1},
    "grants": {"labels": True},
    "attacks": [
        {"name": "linear_input"},
        *({"name": name} for name in CHEATS),
        {"name": "linear_input", "label": "honest, after the cheats"},
        {"name": "inverting_gradients", "search": {"iterations": 20, "restarts": 1}},
    ],
    "audit": {
        "metrics": ["psnr", "identification", "label_accuracy"],
        "victims": 8,
        "distractors": 49,
        "controls": False,
        "utility": False,
    },
}


def run_audit(out: Path, attacks: list[dict[str, object]], **of_audit: object) -> Result:
    """Audit ``attacks`` in the one setting of these tests; ``of_audit`` replaces settings of the audit."""
    scenario = from_dict({**RAW, "attacks": attacks, "audit": {**RAW["audit"], **of_audit}})
    suite = Suite(name="cheated", members=(Member(scenario=scenario),), given="cheated")
    return audit(suite, out=out, jobs=1)


def finding(result: Result, attack: str, metric: str = "psnr") -> Finding | None:
    """The finding of one attack, or None."""
    return next((f for f in result.findings if (f.attack, f.metric) == (attack, metric)), None)


def refusals(result: Result, attack: str) -> list[str]:
    """Why units of the attack were refused."""
    return [r.needs for r in result.refusals if f"'{attack}'" in r.subject]
