"""Power in place: how many planted leaks each attack found, as the findings of the planted cells say."""

from collections.abc import Iterable, Mapping

from glasshouse.audit.scoring.judging.certificate import certificate_of
from glasshouse.audit.scoring.tasks import control_key
from glasshouse.results.records import Finding, Power
from glasshouse.scenario.table import Plugin

__all__ = ["powers_of"]


def powers_of(attacks: Iterable[Plugin], findings: Iterable[Finding], *, how: str) -> Mapping[str, Power]:
    """How many canaries each attack found, by :func:`control_key`; only of those that judge single examples.

    A canary is found as a victim is said to come out: its claim knows it, at the level of one victim.

    Args:
        attacks: of the cell.
        findings: of its canaries, by every metric.
        how: how they were planted, in words.
    """
    powers: dict[str, Power] = {}
    each = list(findings)
    for attack in attacks:
        own = [f for f in each if f.attack == (attack.label or attack.name) and f.primary and f.victims]
        if not own:
            continue
        # The kind of claim that shows most decides: an attack may claim labels beside examples.
        best = max(own, key=lambda f: sum(v.out for v in f.victims) / len(f.victims))
        certificate = certificate_of(best.searches)
        powers[control_key(attack)] = Power(
            planted=len(best.victims),
            found=sum(victim.out for victim in best.victims),
            how=how,
            told_p=1.0 if certificate is None else certificate.told_p,
        )
    return powers
