"""Power in place: how many planted leaks each attack found, as the findings of the planted cells say."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from glasshouse.audit.scoring.judging.certificate import certificate_of
from glasshouse.audit.scoring.tasks import CellTask, Family, power_key
from glasshouse.results.records import Finding, Power
from glasshouse.scenario.table import Plugin

__all__ = ["powers_of", "with_powers"]


def with_powers(family: Family, findings: Iterable[Finding]) -> Iterator[CellTask]:
    """The other cells of a family with the power that the ``findings`` of the first one show."""
    powers = powers_of(family.shown.cell.scenario.attacks, findings, how=family.how)
    return (replace(one, powers=powers) for one in family.rest)


def powers_of(attacks: Iterable[Plugin], findings: Iterable[Finding], *, how: str) -> Mapping[str, Power]:
    """How many canaries each attack found, by :func:`power_key`.

    A canary is found as a victim is said to come out: its claim knows it, at the level of one victim. Of
    claims that judge no single examples (labels, clients), all canaries were found if the gain over guesses
    and over other victims lies above 0, else none.

    Args:
        attacks: of the cell.
        findings: of its canaries, by every metric.
        how: how they were planted, in words.
    """
    powers: dict[str, Power] = {}
    each = list(findings)
    for attack in attacks:
        for one in each:
            if one.attack != (attack.label or attack.name) or not one.primary:
                continue
            certificate = certificate_of(one.searches)
            powers[power_key(attack, one.claim)] = Power(
                planted=len(one.victims) or one.n,
                found=_found(one),
                how=how,
                told_p=1.0 if certificate is None else certificate.told_p,
            )
    return powers


def _found(finding: Finding) -> int:
    if finding.victims:
        return sum(victim.out for victim in finding.victims)
    above = finding.gain_low > 0 and (finding.exchange is None or finding.exchange.is_beaten)
    return finding.n if above and not finding.ladder else 0
