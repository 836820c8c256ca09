"""How settings, grants, defences and counts are called in sentences.

Attacks and metrics describe themselves: ``cards``. What is not known here is shown as it was registered.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from glasshouse.results.vocabulary import GRANTS, NULLS


def plain(name: str) -> str:
    """A registered name (of a baseline) as words: ``prior_mean`` → ``prior mean``."""
    return name.replace("_", " ")


def null(name: str) -> str:
    """What a finding is compared with, in words.

    Examples:
        >>> null("chance"), null("prior_mean")
        ('random guessing', 'prior mean')
    """
    return NULLS.get(name, plain(name))


def grants(names: Sequence[str]) -> str:
    """What was handed to the adversary.

    Examples:
        >>> grants(["labels", "batch_norm"]), grants([])
        ('the true labels and the batch-norm statistics of the private batch', '')
    """
    return join_words([GRANTS.get(name, plain(name)) for name in names])


def under(defenses: Sequence[str]) -> str:
    """The defences of a cell as the head of a row.

    Examples:
        >>> under(()), under(("clip 4", "noise 0.1"))
        ('no defence', 'clip 4 + noise 0.1')
    """
    return " + ".join(defenses) if defenses else "no defence"


def protection(defenses: Sequence[str], axes: Mapping[str, Any]) -> str:
    """The defences of a cell by the label that the scenario gave them, else as they describe themselves.

    Examples:
        >>> protection(("gaussian_noise std=0.1",), {"defenses": "noise 0.1"})
        'noise 0.1'
    """
    labels = [v for key, v in axes.items() if key.startswith("defen") and isinstance(v, str) and v]
    return labels[0] if labels and defenses else under(defenses)


def setting(axes: Mapping[str, Any]) -> str:
    """Values of the axes as words; axes that only choose the defence are left to the defence's name.

    Examples:
        >>> setting({"data.batch": 4, "defenses": "clip"})
        'batch = 4'
    """
    settings = {key: value for key, value in axes.items() if not key.startswith("defen")}
    return ", ".join(f"{key.rsplit('.', 1)[-1]} = {plain_value(value)}" for key, value in settings.items())


def plain_value(value: object) -> str:
    """A setting's value on one line: floats without noise, lists joined, tables as ``key value``."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_value(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain_value(inner) for inner in value)
    return str(value)


def count(n: int, one: str) -> str:
    """A number with its noun.

    Examples:
        >>> count(1, "attack"), count(3, "attacks"), count(2, "policy")
        ('1 attack', '3 attacks', '2 policies')
    """
    single = one[:-1] if one.endswith("s") and not one.endswith("ss") else one
    many = single[:-1] + "ies" if single.endswith("y") else single + "s"
    return f"{n:,} {single if n == 1 else many}"


def join_words(parts: Sequence[str], *, last: str = "and") -> str:
    """Words in a row.

    Examples:
        >>> join_words(["a", "b", "c"]), join_words(["a"])
        ('a, b and c', 'a')
    """
    return " ".join([", ".join(parts[:-1]), last, parts[-1]]) if len(parts) > 1 else "".join(parts)
