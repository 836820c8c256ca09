"""Recover the sums of updates from successive global models, as a party that only receives models can.

A client never sees other clients' updates. But the server's step is public, so the difference of two
successive global models reveals the weighted sum of the round between them; with the ids of the cohort
(a grant) that is as much as the server sees under ``secure_sum``, for every round but the last.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 1 (the client who observes the common models).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from glasshouse.errors import Undefined
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.view import RoundView
from glasshouse.wire import Aggregate, Terms


def with_sums(rounds: Sequence[RoundView], grants: Grants, terms: Terms) -> tuple[RoundView, ...]:
    """Add the aggregate to each round whose cohort was granted and whose next round was observed."""
    sums = {
        this.round: _sum(this, after, grants.cohorts[this.round], terms)
        for this, after in pairwise(rounds)
        if after.round == this.round + 1 and this.round in grants.cohorts
    }
    return tuple(replace(r, aggregate=sums.get(r.round)) for r in rounds)


def _sum(this: RoundView, after: RoundView, cohort: Cohort, terms: Terms) -> Aggregate:
    """Invert the server's step; a parameter that was not sent, or is not floating point, has no sum.

    Raises:
        Undefined: the server takes no step, or no parameter is in both broadcasts.
    """
    step = terms.server_rate * (-terms.rate(this.round) if terms.sends == "gradient" else 1.0)
    before, now = this.broadcast.tensors, after.broadcast.tensors
    change = {
        name: now[name].double() - t.double()
        for name, t in before.items()
        if name in now and t.is_floating_point()
    }
    if not step or not change:
        raise Undefined(
            f"sum of round {this.round} from successive models",
            needs="a server that steps, and parameters in both broadcasts",
            got=f"server rate {terms.server_rate}, {len(change)} shared parameters",
            fix="watch as the server, or attack other rounds",
        )
    answered = len(cohort.selected) - len(cohort.dropped)
    return Aggregate(
        round=this.round,
        kind="gradient" if terms.sends == "gradient" else "delta",
        tensors={name: t * (answered / step) for name, t in change.items()},
        weight=float(answered),
        **vars(cohort),
    )
