"""Each rule of the gate in the words of a site's officer."""

from typing import Final

from glasshouse.gate.policy import Policy

REFUSED: Final = {
    "answered_twice": "a second answer to one question",
    "app": "an app that the site has not approved",
    "budget_bytes": "more bytes than the site lets one job send",
    "budget_day": "more messages than the site lets out in a day",
    "budget_epsilon": "would have spent more privacy than the site allows",
    "budget_rounds": "more rounds than the site lets one job have",
    "buffer": "changed a tensor that may not change",
    "document": "a document in which the site's guard found its rows",
    "document_format": "a document of a format that the site does not let out",
    "document_unread": "a document that could not be read",
    "documents": "more configuration than the site takes in",
    "dtype": "numbers of another type than agreed",
    "examples": "computed from too few examples, or from an unstated number",
    "extra_tensor": "a tensor that was not agreed",
    "fed_event": "an event for the federation, which no filter sees",
    "gate_failed": "could not be judged; what cannot be judged does not leave",
    "incomplete": "announced and never handed in whole",
    "job_component": "a job with parts that could act after the site's filters or in their place",
    "job_config": "a job whose configuration this gate does not read",
    "job_files": "a job with files that this gate does not take",
    "kind": "an answer of a kind that the site does not give",
    "malformed": "a message that the framework itself would not make",
    "metric": "a metric that may not leave",
    "missing_tensor": "left out a tensor that was agreed",
    "no_model_received": "an answer to no model",
    "noise": "without the noise that the site requires",
    "noise_unclear": "noise that the site requires could not be seen",
    "norm": "a larger change than the site allows",
    "norm_step": "a model too far from the one before",
    "not_finite": "values that are no numbers",
    "not_opened": "took more memory or time than the site gives to one message, or broke what opens it",
    "other_model": "another form of model than before",
    "preflight": "the site's own examples were recognised in it",
    "preflight_unclear": "could not be searched for the site's own examples",
    "record": "a part that the site does not let out",
    "scope": "a job of a privacy scope that is not the site's",
    "secure_form": "another form than the stage of the secure sum has",
    "secure_sum": "masked although the site lets no mask out, or bare although it requires one",
    "secure_terms": "terms of a secure sum under which a single update could be unmasked",
    "sent_before": "the same tensors had left before",
    "shape": "a tensor of another shape than agreed",
    "sparse": "changed fewer numbers than the site requires",
    "too_large": "larger than the site lets one message be",
    "unlisted": "numbers or texts that the site has not listed",
    "unreadable_kind": "trees or statistics, which no rule reads",
}
"""Why a message or a job was refused, or kept from the app."""
CHANGED: Final = {
    "buffer": "a tensor that may not change was set back",
    "error_text": "an error's text was replaced by fixed words",
    "examples_rounded": "the number of examples was rounded",
    "grid": "low digits of the numbers were rounded away",
    "metric": "a metric was removed",
    "metric_rounded": "a metric was rounded",
    "noised": "the gate added its own noise",
    "unlisted": "numbers or texts that the site has not listed were removed",
}
"""What the gate changed in a message before it left."""


def say_uncovered(site: Policy) -> str:
    """What no ε of the gate covers."""
    if site.out.mechanism is None:
        return "The gate adds no noise under this policy, so that no epsilon holds."
    *first, last = site.outside_epsilon
    return f"Not covered by epsilon: {' and '.join([', '.join(first), last] if first else [last])}."
