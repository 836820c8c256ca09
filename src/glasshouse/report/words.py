"""Names of settings, grants, defences and counts in sentences.

Names of attacks and metrics are in ``cards``. Unknown names are shown as registered.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from glasshouse.results.judgement import these_weights
from glasshouse.results.vocabulary import GRANTS, NULLS, STRONGEST, WITHOUT_UPLOADS


def plain(name: str) -> str:
    """A registered name (of a baseline) as words: ``prior_mean`` → ``prior mean``."""
    return name.replace("_", " ")


def null(name: str) -> str:
    """The null baseline in words.

    Examples:
        >>> null("chance"), null("prior_mean")
        ('random guessing', 'prior mean')
    """
    return NULLS.get(name, plain(name))


def guesser(name: str) -> str:
    """Who reaches the null baseline, before a number.

    Examples:
        >>> guesser("chance"), guesser("the same attack without uploads")
        ('guessing', 'the same attack without uploads')
    """
    return name if name in (WITHOUT_UPLOADS, STRONGEST) else "guessing"


def grants(names: Sequence[str]) -> str:
    """The side knowledge given to the adversary, in words.

    Examples:
        >>> grants(["labels", "batch_norm"]), grants([])
        ('the true labels and the batch-norm statistics of the private batch', '')
    """
    return join_words([GRANTS.get(name, plain(name)) for name in names])


def under(defenses: Sequence[str]) -> str:
    """The defences of a cell, by their own descriptions.

    Examples:
        >>> under(()), under(("clip 4", "noise 0.1"))
        ('no defence', 'clip 4 + noise 0.1')
    """
    return " + ".join(defenses) if defenses else "no defence"


def protection(defenses: Sequence[str], axes: Mapping[str, Any]) -> str:
    """The defences of a cell: the scenario's label, else their own descriptions.

    Examples:
        >>> protection(("gaussian_noise std=0.1",), {"defenses": "noise 0.1"})
        'noise 0.1'
    """
    labels = [v for key, v in axes.items() if key.startswith("defen") and isinstance(v, str) and v]
    return labels[0] if labels and defenses else under(defenses)


def setting(axes: Mapping[str, Any]) -> str:
    """Values of the axes in words, without axes that only choose the defence.

    Examples:
        >>> setting({"data.batch": 4, "defenses": "clip"})
        'batch = 4'
    """
    settings = {key: value for key, value in axes.items() if not key.startswith("defen")}
    return ", ".join(f"{key.rsplit('.', 1)[-1]} = {plain_value(value)}" for key, value in settings.items())


def where(defenses: Sequence[str], axes: Mapping[str, Any]) -> str:
    """Defences and axes of a cell in a sentence.

    Examples:
        >>> where((), {"data.batch": 4}), where(("clip 4",), {})
        ('without a defence (batch = 4)', 'under clip 4')
    """
    text = f"under {protection(defenses, axes)}" if defenses else "without a defence"
    axes_text = setting(axes)
    return f"{text} ({axes_text})" if axes_text else text


def condition(
    defenses: Sequence[str], axes: Mapping[str, Any], draws: int, *, of_clients: bool = False
) -> str:
    """A cell in a sentence, with the draws of first weights if a finding is about these alone.

    From four draws on it is about the scenario; a rate over clients from six on.

    Examples:
        >>> condition((), {}, 1), condition((), {}, 4)
        ('without a defence, for these weights', 'without a defence')
    """
    text = where(defenses, axes)
    weights = these_weights(draws, of_clients=of_clients)
    return f"{text}, for {weights}" if weights else text


def capital(text: str) -> str:
    """Text with its first letter as a capital; the rest stays."""
    return text[:1].upper() + text[1:]


def plain_value(value: object) -> str:
    """A setting's value on one line: floats in ``%g`` format, lists joined, tables as ``key value``."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_value(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain_value(inner) for inner in value)
    return str(value)


def count(n: int, one: str) -> str:
    """A number with its noun in singular or plural.

    Examples:
        >>> count(1, "attack"), count(3, "attacks"), count(2, "policy")
        ('1 attack', '3 attacks', '2 policies')
    """
    single = one[:-1] if one.endswith("s") and not one.endswith("ss") else one
    many = single[:-1] + "ies" if single.endswith("y") else single + "s"
    return f"{n:,} {single if n == 1 else many}"


def join_words(parts: Sequence[str]) -> str:
    """Join words with commas and a final "and".

    Examples:
        >>> join_words(["a", "b", "c"]), join_words(["a"])
        ('a, b and c', 'a')
    """
    return " ".join([", ".join(parts[:-1]), "and", parts[-1]]) if len(parts) > 1 else "".join(parts)


def few(names: Sequence[str]) -> str:
    """Unique names; if there are more than four, the first three and the number of others.

    Examples:
        >>> few(["a", "b", "a"]), few(["a", "b", "c", "d", "e"])
        ('a and b', 'a, b, c and 2 more')
    """
    once = list(dict.fromkeys(names))
    return join_words(once if len(once) <= 4 else [*once[:3], f"{len(once) - 3} more"])
