"""What an adversary was given came out of no update: neither a leak nor a contradiction."""

import numpy as np
import pytest
from tests.verdicts.test_contradictions import guarantee
from tests.verdicts.test_words import clients_with_labels


def granted(proven: bool, **changes):
    """An attack that was granted all labels, and claims them."""
    one, counts = clients_with_labels(12, np.random.default_rng(1), examples=4)
    one.called, one.attack = counts, "inverting_gradients"
    one.guarantee = guarantee(0.5) if proven else None
    for name, value in changes.items():
        setattr(one, name, value)
    return one.scores()


@pytest.mark.parametrize("proven", [False, True])
def test_labels_that_were_granted_are_not_scored(proven):
    """They were a leak of 100 % [74, 100], under a proven ε a contradiction that ended the audit with 1."""
    scores = granted(proven, grants={"labels": True})
    assert scores.findings == ()
    (refusal,) = scores.refusals
    assert "label_accuracy" in refusal.subject
    assert refusal.got == "grants.labels, which this attack uses"


def test_labels_that_were_not_granted_are():
    (finding,) = granted(False).findings
    assert finding.verdict == "leaks"
    (finding,) = granted(True).findings
    assert finding.verdict == "contradiction"


def test_who_does_not_use_the_grant_is_scored():
    (finding,) = granted(False, grants={"labels": True}, attack="linear_input").findings
    assert finding.verdict == "leaks"
