"""How the attacks and metrics of the made-up results describe themselves; one of each is a stranger's."""

from glasshouse.report.cards import Cards
from glasshouse.report.readings import Readings, read
from glasshouse.results.cards import AttackCard, MetricCard
from glasshouse.results.records import Finding, Result

TITLES = {
    "dlg": "DLG",
    "idlg": "iDLG",
    "inverting_gradients": "Inverting Gradients",
    "gradinversion": "GradInversion",
    "ggl": "GGL",
    "pli": "PLI",
    "scale_mia": "Scale-MIA",
    "loki": "LOKI",
    "prolin": "PROLIN",
    "strange": "A Stranger's Attack",
}
ATTACKS = tuple(
    AttackCard(label=name, name=name, title=title, summary=f"what {title} does")
    for name, title in TITLES.items()
)


def metric(name: str, label: str, sentence: str, **rest: object) -> MetricCard:
    """A card with what most of them have in common."""
    common: dict[str, object] = {
        "display": "plain",
        "low": 0.0,
        "high": 1.0,
        "higher_leaks": True,
        "unit": "",
        "severity": "images",
    }
    settings = {**common, "explanation": f"What {label} is, for a lay reader.", **rest}
    return MetricCard(name=name, label=label, sentence=sentence, **settings)


METRICS = (
    metric("rate_blind", "examples recovered", "recovered {} of the examples", display="rate", order=10),
    metric(
        "identification",
        "identification",
        "rebuilt images of which {} point to the right original",
        display="rate",
        unit="share",
        order=62,
    ),
    metric(
        "psnr",
        "PSNR",
        "rebuilt private images at PSNR {}",
        display="level",
        high=100.0,
        unit="dB",
        order=64,
        note="a paper with another peak reports 6.02 dB less for the same images.",
    ),
    metric(
        "ssim",
        "SSIM",
        "rebuilt private images with SSIM {} (likeness; 1 is a perfect copy)",
        low=-1.0,
        order=70,
    ),
    metric(
        "mse",
        "squared error",
        "rebuilt private images with mean squared error {}",
        higher_leaks=False,
        high=None,
        order=240,
    ),
    metric(
        "lpips",
        "LPIPS",
        "rebuilt private images at distance {}",
        higher_leaks=False,
        high=None,
        order=210,
    ),
    metric(
        "f1",
        "F1",
        "found the clients in question (F1 {}; 1 is all of them and nobody else)",
        severity="membership",
        order=30,
    ),
    metric(
        "label_accuracy",
        "labels read",
        "read {} of the private labels right",
        display="rate",
        severity="labels",
        order=400,
    ),
    metric(
        "attribution",
        "attribution",
        "named the right client for {} of what it recovered",
        display="rate",
        severity="other",
        order=410,
    ),
    metric(
        "defense_named",
        "defence named",
        "named the defence behind {} of the updates",
        display="rate",
        severity="other",
        order=300,
        private=False,
    ),
    metric("strangeness", "strangeness", "was as strange as {}", high=None, severity="other"),
)
CARDS = Cards(attacks={a.label: a for a in ATTACKS}, metrics={m.name: m for m in METRICS})


def described(*findings: Finding, **rest: object) -> Result:
    """A result whose attacks and metrics describe themselves."""
    settings: dict[str, object] = {"suite": "x", "attacks": ATTACKS, "metrics": METRICS, **rest}
    return Result(findings=findings, **settings)


def reading(*findings: Finding, cards: Cards | None = None, **rest: object) -> Readings:
    """What the page reads of a described result of these findings; ``cards``: others than the usual."""
    return read(described(*findings, **rest), cards=cards)
