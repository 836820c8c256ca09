"""How attacks, metrics, baselines, grants and defences are called in sentences.

A name that is not listed here (a plug-in's) is shown as it was registered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

ATTACKS: Final = {
    "dlg": "DLG",
    "idlg": "iDLG",
    "inverting_gradients": "Inverting Gradients",
    "gradinversion": "GradInversion",
    "linear_input": "the linear-layer read-out",
    "label_inference": "label inference",
    "ggl": "GGL",
    "robbing_the_fed": "Robbing the Fed",
    "loki": "LOKI",
    "scale_mia": "Scale-MIA",
    "nex": "NEX",
    "maui": "Maui",
    "tbi": "TBI",
    "pli": "PLI",
    "class_inversion": "class inversion",
    "disaggregation": "gradient disaggregation",
    "ols": "OLS",
    "reg": "REG",
    "prolin": "PROLIN",
    "prolin_posterior": "the PROLIN posterior",
}


GRANTS: Final = {
    "auxiliary": "auxiliary data",
    "labels": "true labels",
    "batch_norm": "batch-norm statistics",
    "defense": "the defence's name",
    "challenge": "challenge examples",
    "cohorts": "who took part in each round",
}


@final
@dataclass(frozen=True, kw_only=True)
class MetricWords:
    """How one metric is said.

    Attributes:
        label: for tables and axes.
        kind: ``rate`` is shown as a percentage, ``level`` in decibels, ``plain`` as it is.
        said: what the attack did, with one ``{}`` for the value and its interval.
        note: what a reader must know who compares the number with a paper's.
    """

    label: str
    kind: Literal["rate", "level", "plain"]
    said: str
    note: str = ""


# In order of preference: the first metric that an attack has is the one that sentences quote.
METRICS: Final[Mapping[str, MetricWords]] = {
    "rate_blind": MetricWords(
        label="examples recovered", kind="rate", said="recovered {} of the private examples"
    ),
    "leakage": MetricWords(
        label="representations recovered", kind="rate", said="read {} of the private representations"
    ),
    "f1": MetricWords(label="F1", kind="plain", said="found the clients in question with F1 {}"),
    "auc": MetricWords(label="AUC", kind="plain", said="told members from others with AUC {}"),
    "tpr_at_fpr": MetricWords(
        label="found at a low false-alarm rate", kind="rate", said="found {} at a low false-alarm rate"
    ),
    "attack_accuracy": MetricWords(
        label="attack accuracy",
        kind="rate",
        said="rebuilt pictures recognised as their target in {} of cases",
    ),
    "ssim": MetricWords(label="SSIM", kind="plain", said="rebuilt private images with SSIM {}"),
    "identification": MetricWords(
        label="identification",
        kind="rate",
        said="rebuilt images of which {} point to the right original",
    ),
    "defense_named": MetricWords(
        label="defence named", kind="rate", said="named the defence behind {} of the updates"
    ),
    "attribute_agreement": MetricWords(
        label="attribute agreement", kind="rate", said="rebuilt images of which {} look alike to a classifier"
    ),
    "identity_match": MetricWords(
        label="identity match", kind="rate", said="rebuilt pictures of the right identity in {} of cases"
    ),
    "ssim_gap": MetricWords(
        label="SSIM gap", kind="plain", said="rebuilt pictures nearer to the private than the public: {}"
    ),
    "class_identification": MetricWords(
        label="identified among all people",
        kind="rate",
        said="rebuilt pictures that point to the right person in {} of cases",
    ),
    "target_identification": MetricWords(
        label="identified among the private classes",
        kind="rate",
        said="rebuilt pictures that point to the right private class in {} of cases",
    ),
    "ssim_private": MetricWords(
        label="SSIM with the private mean", kind="plain", said="rebuilt private classes with SSIM {}"
    ),
    "ssim_public": MetricWords(
        label="SSIM with the public mean", kind="plain", said="rebuilt public means with SSIM {}"
    ),
    "too_close": MetricWords(
        label="own public mean shown", kind="rate", said="showed the own public mean in {} of cases"
    ),
    "owner": MetricWords(label="owner named", kind="rate", said="named the owner of {} of the classes"),
    "psnr": MetricWords(
        label="PSNR",
        kind="level",
        said="rebuilt private images at PSNR {}",
        note="PSNR is that of images on [0, 1] with peak 1; a paper that takes peak 1 on [-1, 1], as GGL's, "
        "reports 6.02 dB less for the same images.",
    ),
    "lpips": MetricWords(label="LPIPS", kind="plain", said="rebuilt private images at LPIPS distance {}"),
    "perceptual": MetricWords(
        label="perceptual distance", kind="plain", said="rebuilt private images at perceptual distance {}"
    ),
    "mse_r": MetricWords(
        label="feature error", kind="plain", said="rebuilt private images with feature error {}"
    ),
    "mse": MetricWords(
        label="squared error", kind="plain", said="rebuilt private images with mean squared error {}"
    ),
    "rate_paper": MetricWords(
        label="examples recovered (paper's count)",
        kind="rate",
        said="recovered {} of the private examples, counted as the paper does",
    ),
    "leakage_precision": MetricWords(
        label="precision of what was read", kind="rate", said="read representations of which {} are real"
    ),
    "attribution": MetricWords(
        label="attribution", kind="rate", said="named the right client for {} of what it recovered"
    ),
    "label_accuracy": MetricWords(
        label="labels read", kind="rate", said="read {} of the private labels right"
    ),
    "recall": MetricWords(label="recall", kind="rate", said="found {} of the clients in question"),
    "precision": MetricWords(label="precision", kind="rate", said="named clients of which {} were right"),
    "accuracy": MetricWords(label="accuracy", kind="rate", said="was right in {} of cases"),
}
PREFERENCE: Final = tuple(METRICS)
# These tell something about the examples or the clients, but give no example away.
MINOR: Final = frozenset(
    {
        "label_accuracy",
        "attribution",
        "leakage_precision",
        "recall",
        "precision",
        "accuracy",
        "owner",
        "too_close",
        "ssim_public",
    }
)


def metric(name: str) -> MetricWords:
    """The words for a metric; an unknown one keeps its registered name.

    Example:
        >>> metric("ssim").label
        'SSIM'
        >>> metric("my_metric").said.format("0.40")
        'scored 0.40 on my metric'
    """
    plain = name.replace("_", " ")
    safe = plain.replace("{", "{{").replace("}", "}}")
    return METRICS.get(name) or MetricWords(label=plain, kind="plain", said=f"scored {{}} on {safe}")


def notes(names: Iterable[str]) -> tuple[str, ...]:
    """What must be known about these metrics to compare them with a paper's, each once.

    Example:
        >>> len(notes(["psnr", "ssim", "psnr"])), notes(["ssim", "my_metric"])
        (1, ())
    """
    return tuple(dict.fromkeys(metric(name).note for name in names if metric(name).note))


def preference(name: str) -> int:
    """Position in the order in which metrics are quoted; unknown ones come last."""
    return PREFERENCE.index(name) if name in METRICS else len(PREFERENCE)


def attack(name: str) -> str:
    """The paper's name for an attack.

    Example:
        >>> attack("inverting_gradients"), attack("my_attack")
        ('Inverting Gradients', 'my_attack')
    """
    return ATTACKS.get(name, name)


def plain(name: str) -> str:
    """A registered name (of a baseline) as words: ``prior_mean`` → ``prior mean``."""
    return name.replace("_", " ")


def grants(names: Sequence[str]) -> str:
    """What was handed to the adversary.

    Example:
        >>> grants(["labels", "batch_norm"]), grants([])
        ('true labels and batch-norm statistics', '')
    """
    return listed([GRANTS.get(name, plain(name)) for name in names])


def under(defenses: Sequence[str]) -> str:
    """The defences of a cell as the head of a row.

    Example:
        >>> under(()), under(("clip 4", "noise 0.1"))
        ('no defence', 'clip 4 + noise 0.1')
    """
    return " + ".join(defenses) if defenses else "no defence"


def protection(defenses: Sequence[str], axes: Mapping[str, Any]) -> str:
    """The defences of a cell by the label that the scenario gave them, else as they describe themselves.

    Example:
        >>> protection(("gaussian_noise std=0.1",), {"defenses": "noise 0.1"})
        'noise 0.1'
    """
    labels = [v for key, v in axes.items() if key.startswith("defen") and isinstance(v, str) and v]
    return labels[0] if labels and defenses else under(defenses)


def titled(text: str) -> str:
    """A title that begins with an attack's registered name, with the paper's name instead.

    Example:
        >>> titled("idlg (batch = 4)"), titled("dlg (defenses = none)"), titled("A histogram")
        ('iDLG (batch = 4)', 'DLG (no defence)', 'A histogram')
    """
    first, space, rest = text.partition(" ")
    rest = rest.replace("defenses = none", "no defence").replace("defenses = ", "")
    return attack(first) + space + rest


def setting(axes: Mapping[str, Any]) -> str:
    """Values of the axes as words; axes that only choose the defence are left to the defence's name.

    Example:
        >>> setting({"data.batch": 4, "defenses": "clip"})
        'batch = 4'
    """
    shown = {key: value for key, value in axes.items() if not key.startswith("defen")}
    return ", ".join(f"{key.rsplit('.', 1)[-1]} = {plain_value(value)}" for key, value in shown.items())


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

    Example:
        >>> count(1, "attack"), count(3, "attacks"), count(2, "policy")
        ('1 attack', '3 attacks', '2 policies')
    """
    single = one[:-1] if one.endswith("s") and not one.endswith("ss") else one
    many = single[:-1] + "ies" if single.endswith("y") else single + "s"
    return f"{n:,} {single if n == 1 else many}"


def listed(parts: Sequence[str], *, last: str = "and") -> str:
    """Words in a row.

    Example:
        >>> listed(["a", "b", "c"]), listed(["a"])
        ('a, b and c', 'a')
    """
    return " ".join([", ".join(parts[:-1]), last, parts[-1]]) if len(parts) > 1 else "".join(parts)
