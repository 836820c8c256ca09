"""One-line edits of the source that would turn a verdict; each must fail a named test."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

SOURCE: Final = Path(__file__).parents[2] / "src"
RULES: Final = "tests/unit/test_rules.py"
UNIT: Final = "tests/unit/test_audit.py"
VERDICT: Final = "tests/unit/test_verdict.py"
EDGES: Final = "tests/unit/test_verdict_edges.py"


@final
@dataclass(frozen=True, kw_only=True)
class Edit:
    """One mutant.

    Attributes:
        file: below ``src/glasshouse``.
        old: text that occurs exactly once there.
        new: what replaces it.
        test: the test that must fail then.
    """

    file: str
    old: str
    new: str
    test: str


EDITS: Final = {
    "control ignored": Edit(
        file="audit/scoring/judging/verdict.py",
        old="if evidence.control is not None and not evidence.control.passed:",
        new="if evidence.control is None and evidence.control is not None:",
        test=f"{VERDICT}::test_a_failed_control_and_a_contradiction_come_first",
    ),
    "no control is good enough": Edit(
        file="audit/scoring/judging/verdict.py",
        old="if evidence.control is None:",
        new="if evidence.metric is None:",
        test=f"{VERDICT}::test_whatever_is_missing_makes_it_not_shown_and_is_named",
    ),
    "negative control ignored": Edit(
        file="audit/scoring/judging/control.py",
        old="passed=positive.low > 0 and not negative.low > 0,",
        new="passed=positive.low > 0,",
        test=f"{RULES}::test_an_attack_that_gains_on_unrelated_victims_fails_its_control",
    ),
    "card's arguments win over the audit's": Edit(
        file="audit/scoring/judging/control.py",
        old='[{"name": task.attack, **deepcopy(task.plugin.arguments)}]',
        new='[{"name": task.attack}]',
        test="tests/unit/test_control.py::test_an_audit_believes_only_attacks_that_pass_their_control",
    ),
    "policy without upper bound": Edit(
        file="audit/scoring/judging/policy.py",
        old="if end > limit:",
        new="if finding.gain > limit:",
        test=f"{RULES}::test_a_limit_holds_only_where_the_whole_interval_is_within_it",
    ),
    "policy without lower bound": Edit(
        file="audit/scoring/judging/policy.py",
        old="if finding.gain_low > limit:",
        new="if finding.gain > limit:",
        test=f"{RULES}::test_a_limit_holds_only_where_the_whole_interval_is_within_it",
    ),
    "verdict thresholds tripled": Edit(
        file="audit/scoring/judging/verdict.py",
        old='SMALL: Final = {"dB": 1.0, "share": 0.1, "": 0.05}',
        new='SMALL: Final = {"dB": 3.0, "share": 0.3, "": 0.15}',
        test=f"{VERDICT}::test_what_is_small_in_an_unbounded_metric_depends_on_the_null",
    ),
    "median 0": Edit(
        file="audit/scoring/gains.py",
        old="return float(np.median(means_of(scored.values)))",
        new="return 0.0",
        test=f"{UNIT}::test_values_are_averaged_within_a_victim_first",
    ),
    "min_accuracy never broken": Edit(
        file="audit/scoring/judging/policy.py",
        old="if utility.high < least:",
        new="if utility.high < 0:",
        test=f"{RULES}::test_an_accuracy_below_the_least_one_is_broken",
    ),
    "single victims do not stop a policy": Edit(
        file="audit/scoring/judging/policy.py",
        old="if count := sum(victim.leaks for victim in single):",
        new="if count := 0:",
        test="tests/unit/test_policy.py::test_victims_that_another_metric_of_the_same_claims_judged_count",
    ),
    "headline not corrected for the number of findings": Edit(
        file="results/judgement.py",
        old="values[i] * (len(values) - place) < ALPHA",
        new="values[i] < ALPHA",
        test="tests/unit/test_report_headline.py"
        "::test_among_many_findings_one_victim_out_is_luck_and_two_of_three_are_not",
    ),
    "verdicts on single victims without a correction": Edit(
        file="audit/scoring/victims.py",
        old="adjusted = benjamini_hochberg([row.p for row in rows])",
        new="adjusted = [row.p for row in rows]",
        test="tests/unit/test_victims.py::test_who_is_named_is_corrected_for_how_many_are_asked_about",
    ),
    "luck counts as a leak in the headline": Edit(
        file="audit/scoring/judging/verdict.py",
        old="finding.p_adjusted >= ALPHA",
        new="finding.p_adjusted >= 1.1",
        test=f"{VERDICT}::test_luck_and_the_pixels_have_the_last_word_over_a_run",
    ),
    "a null replaces a known chance by luck": Edit(
        file="audit/scoring/nulls.py",
        old="< LUCK / len(hits)",
        new="< 1.1",
        test="tests/unit/test_few_victims.py::test_luck_on_pseudo_victims_does_not_replace_a_known_chance",
    ),
    "few victims are compared with a null at its luckiest": Edit(
        file="audit/scoring/gains.py",
        old="max(mean, scored.null_most or 0.0)",
        new="mean",
        test="tests/unit/test_few_victims.py::test_few_victims_are_compared_with_the_most_that_the_null_can_get",
    ),
    "exchange judged by Student's t": Edit(
        file="audit/scoring/exchange.py",
        old="elif not metric.counts and (tested := _compare_pairs(scored, metric, stream)) is not None:",
        new="elif (tested := None) is not None:",
        test="tests/property/test_false_leaks.py::test_a_long_tail_makes_no_leak[MSE, one failure in five-8]",
    ),
    "exchange score dropped": Edit(
        file="audit/scoring/judging/verdict.py",
        old="if beyond_null and (evidence.exchange is None or evidence.exchange.above_zero):",
        new="if beyond_null:",
        test=f"{VERDICT}::test_a_leak_needs_the_null_the_exchange_and_the_label",
    ),
    "one claimed sentence serves for two private ones": Edit(
        file="metrics/text/sentences.py",
        old="remaining[sentence] -= 1",
        new="remaining[sentence] -= 0",
        test="tests/unit/test_sentences.py::test_exact_counts_each_claim_and_each_sentence_once",
    ),
    "a tie identifies a sentence": Edit(
        file="metrics/text/sentences.py",
        old="likeness(true, claim) > max(",
        new="likeness(true, claim) >= max(",
        test="tests/unit/test_sentences.py::test_identification_is_among_sentences_of_the_same_length",
    ),
    "padding has a loss": Edit(
        file="tasks/next_token.py",
        old="return (each * counts).sum(1) / counts.sum(1).clamp_min(1)",
        new="return each.mean(1)",
        test="tests/unit/test_text_models.py::test_the_loss_is_that_of_a_sentence_without_padding",
    ),
    "the p-value without the exchange's": Edit(
        file="audit/scoring/finding.py",
        old="p=max(p, other.p if other else 0.0),",
        new="p=p,",
        test=f"{EDGES}::test_the_p_value_is_the_larger_one_of_null_and_exchange",
    ),
    "the strongest guarantee of several seeds bounds": Edit(
        file="audit/scoring/finding.py",
        old="return max(guarantees, key=lambda g: g.epsilon)",
        new="return min(guarantees, key=lambda g: g.epsilon)",
        test=f"{EDGES}::test_of_several_seeds_the_weakest_guarantee_bounds",
    ),
    "ties of scores rank in favour of the attack": Edit(
        file="metrics/statistics/victims.py",
        old="ranks = [int((heldout[j] >= column[j]).sum())]",
        new="ranks = [int((heldout[j] > column[j]).sum())]",
        test="tests/unit/test_named_victims.py::test_a_tie_counts_against_the_attack_in_each_rank",
    ),
    "ties of leads rank in favour of the attack": Edit(
        file="metrics/statistics/victims.py",
        old="ranks.append(int((leads >= lead).sum()))",
        new="ranks.append(int((leads > lead).sum()))",
        test="tests/unit/test_named_victims.py::test_a_tie_counts_against_the_attack_in_each_rank",
    ),
    "one unfinished search is none": Edit(
        file="results/strength.py",
        old="        if self.unfinished:\n",
        new="        if self.unfinished > 1:\n",
        test=f"{EDGES}::test_one_unfinished_search_of_forty_certifies_nothing",
    ),
    "one unfinished search breaks no limit": Edit(
        file="audit/scoring/judging/policy.py",
        old="    if finding.unfinished:\n",
        new="    if finding.unfinished and finding.unfinished > 1:\n",
        test=f"{EDGES}::test_one_unfinished_search_of_forty_certifies_nothing",
    ),
    "the certificate believes the smaller loss of a claim": Edit(
        file="audit/scoring/judging/certificate.py",
        old="loss=max(first, second),",
        new="loss=min(first, second),",
        test="tests/unit/test_search_certificate.py::test_of_two_answers_about_a_claim_the_worse_counts",
    ),
    "the certificate takes the truth's larger loss": Edit(
        file="audit/scoring/judging/certificate.py",
        old="truth=min(true),",
        new="truth=max(true),",
        test="tests/unit/test_search_certificate.py::test_of_two_labellings_the_truth_has_the_smaller_loss",
    ),
    "clients whom a round's claims leave out are no misses": Edit(
        file="audit/scoring/pair.py",
        old="return bool(rounds) and claimed.client in (None, victim.client)",
        new="return bool(rounds)",
        test=f"{EDGES}::test_clients_whom_a_rounds_claims_leave_out_are_misses",
    ),
    "a claim about the whole round where one client was asked about": Edit(
        file="audit/attacking/check.py",
        old="if unit.client is not None and client != unit.client:",
        new="if unit.client is not None and client not in (None, unit.client):",
        test=f"{EDGES}::test_a_claim_about_the_round_is_none_about_the_one_client_asked_about",
    ),
    "the headline's p without its factor": Edit(
        file="results/judgement.py",
        old="return min(1.0, count * min((_at_least",
        new="return min(1.0, min((_at_least",
        test=f"{EDGES}::test_somebody_out_pays_for_how_many_were_asked",
    ),
    "near-duplicates count as many victims": Edit(
        file="audit/scoring/finding.py",
        old="result = equivalence(len(out), len(units), margin=margin)",
        new="result = equivalence(len(out), len(victims), margin=margin)",
        test="tests/verdicts/test_words.py::test_pictures_of_one_person_are_one_victim",
    ),
    "a limit ignores what is missing": Edit(
        file="audit/scoring/judging/policy.py",
        old="    for reason in finding.lacks:\n",
        new="    for reason in ():\n",
        test=f"{EDGES}::test_a_limit_holds_only_if_nothing_that_it_needs_is_missing",
    ),
}
