"""What an adversary was given came out of no update: neither a leak nor a contradiction."""

import numpy as np
import pytest
import torch
from tests.verdicts.bench import Bench, batch
from tests.verdicts.test_contradictions import guarantee
from tests.verdicts.test_words import clients_with_labels

from glasshouse.modalities.sentence import Sentence
from glasshouse.results.records import Finding
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.wire import Batch


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


def common_sentences(seed: int, known: bool) -> Finding:
    """Two of five clients sent the common sentence of their label, which auxiliary data do not hold.

    Claimed is the common sentence of each label, or what each client sent (``known``).
    """
    random, n, length = np.random.default_rng(seed), 25, 8
    sentences = Sentence(vocabulary=Vocabulary(size=60, pad=0), length=length)
    common = torch.from_numpy(random.integers(1, 60, (5, length)))

    def of(count: int, share: float) -> Batch:
        labels = torch.arange(count) % 5
        tokens = torch.from_numpy(random.integers(1, 60, (count, length)))
        sent = torch.from_numpy(random.random(count) < share)[:, None]
        return batch(torch.where(sent, common[labels], tokens), labels)

    private = of(n, 0.4)
    one = Bench(
        private=private, claims=private.inputs if known else common[private.labels], heldout=of(200, 0.4),
        auxiliary=of(100, 0.0), metrics=("exact_sentences",), modality=sentences, tokens=True, power=None,
    )  # fmt: skip
    return one.finding()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_common_sentence_of_a_label_that_was_granted_is_no_sentence_read(seed):
    """It was "leaks": claims of sentences were never compared with others of their label."""
    finding = common_sentences(seed, known=False)
    assert finding.gain_low > 0
    assert finding.verdict == "label leak"
    assert common_sentences(seed, known=True).verdict == "leaks"
