"""A made-up result with everything a report can hold, and a large one. No number here was measured."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from report_cards import ATTACKS, METRICS

from glasshouse.results.cards import Limit, ThreatCard
from glasshouse.results.files import write_result
from glasshouse.results.records import (
    Control,
    Exhibit,
    Finding,
    Refused,
    Result,
    Settings,
    Utility,
    Verdict,
    Victim,
)

PASSED = Control(
    positive=0.71,
    positive_low=0.64,
    negative=0.00,
    negative_low=-0.02,
    passed=True,
    setting="LeNet with sigmoid, batch 1, no defence, 300 steps",
    n=20,
    metric="ssim",
)
SILENT = Control(
    positive=None,
    positive_low=None,
    negative=None,
    negative_low=None,
    passed=False,
    setting="LeNet with sigmoid, batch 1, no defence, 300 steps",
    n=0,
    metric="ssim",
)
WEAK = Control(
    positive=0.03,
    positive_low=-0.04,
    negative=0.00,
    negative_low=-0.03,
    passed=False,
    setting="LeNet with sigmoid, batch 1, no defence, 300 steps",
    n=20,
    metric="ssim",
)
VICTIMS = tuple(
    Victim(
        name=f"round 0, client {i}, example 0",
        value=value,
        rank=rank,
        compared=199,
        p=(1 + rank) / 200,
        p_adjusted=adjusted,
        leaks=adjusted < 0.05,
    )
    for i, (value, rank, adjusted) in enumerate(((0.4, 70, 0.355), (0.9, 0, 0.015), (0.8, 0, 0.015)))
)
DEFENSES = ((), ("Gaussian noise 0.1",), ("clip L2 4",), ("prune 90 %",), ("Soteria 80 %",))
LEVELS = {"dlg": 0.05, "idlg": 0.08, "inverting_gradients": 0.42, "gradinversion": 0.31, "ggl": 0.36}
KEPT = (1.0, 0.08, 0.9, 0.45, 0.02)


def finding(
    *,
    gain: float = 0.41,
    half: float = 0.06,
    metric: str = "ssim",
    attack: str = "inverting_gradients",
    scenario: str = "inversion-defences",
    defenses: tuple[str, ...] = (),
    axes: Settings | None = None,
    base: float = 0.21,
    higher: bool = True,
    unit: str = "",
    verdict: Verdict | None = None,
    control: Control | None = PASSED,
    given: tuple[str, ...] = (),
    draws: int = 4,
    **rest: object,
) -> Finding:
    """A finding whose verdict follows from its interval unless one is named."""
    value = base + gain if higher else base - gain
    by_interval: Verdict = "leaks" if gain > half else "no leak found" if half < 0.1 else "not shown"
    return Finding(
        scenario=scenario,
        cell=cell(scenario, defenses, axes or {}),
        axes=axes or {},
        attack=attack,
        protocol="fedsgd",
        defenses=defenses,
        metric=metric,
        unit_of_value=unit,
        higher_leaks=higher,
        value=value,
        low=value - half,
        high=value + half,
        n=20,
        unit="victims",
        baseline="prior_mean",
        baseline_value=base,
        gain=gain,
        gain_low=gain - half,
        gain_high=gain + half,
        control=control,
        verdict=verdict or by_interval,
        chosen="4 restarts, lowest loss of the attack",
        given=given,
        seconds=83.5,
        about="rounds 0 to 19, one client each",
        draws=draws,
        **rest,
    )


def cell(scenario: str, defenses: Sequence[str], axes: Settings) -> str:
    return f"{scenario}/{'+'.join(defenses)}/{sorted(axes.items())}"


def matrix(scenario: str, axes: Settings | None = None, scale: float = 1.0) -> list[Finding]:
    """Five attacks under five settings, in three metrics."""
    rows = []
    for defenses, kept in zip(DEFENSES, KEPT, strict=True):
        for i, (attack, level) in enumerate(LEVELS.items()):
            gain = level * kept * scale - 0.004 * i
            control = WEAK if attack == "dlg" else PASSED
            verdict: Verdict | None = "no power" if attack == "dlg" else None
            common = {"attack": attack, "scenario": scenario, "defenses": defenses, "axes": axes}
            given = ("labels",) if attack == "gradinversion" else ()
            half = 0.12 if attack == "ggl" and kept < 0.5 else 0.03
            rows += [
                finding(gain=gain, half=half, control=control, verdict=verdict, given=given, **common),
                finding(
                    gain=22 * gain,
                    half=1.1,
                    metric="psnr",
                    unit="dB",
                    base=11.2,
                    control=control,
                    verdict=verdict or ("leaks" if gain > half else "no leak found"),
                    given=given,
                    **common,
                ),
                finding(
                    gain=1.7 * gain,
                    half=0.09,
                    metric="identification",
                    base=0.05,
                    control=control,
                    verdict=verdict or ("leaks" if 1.7 * gain > 0.09 else "no leak found"),
                    given=given,
                    **common,
                ),
            ]
    return rows


def utilities(scenario: str, axes: Settings | None = None) -> list[Utility]:
    levels = ((0.612, None), (0.431, 8.2), (0.598, None), (0.571, None), (0.569, None))
    return [
        Utility(
            scenario=scenario,
            cell=cell(scenario, defenses, axes or {}),
            axes=axes or {},
            defenses=defenses,
            metric="accuracy",
            value=value,
            low=value - 0.03,
            high=value + 0.03,
            n=1000,
            rounds=40,
            epsilon=epsilon,
            delta=1e-5 if epsilon else None,
        )
        for defenses, (value, epsilon) in zip(DEFENSES, levels, strict=True)
    ]


def card(scenario: str, *, public: bool = True, structural: bool = False, **rest: object) -> ThreatCard:
    settings: dict[str, object] = {
        "scenario": scenario,
        "summary": "An honest-but-curious server that sees each client's gradient tries to rebuild the "
        "examples behind it.",
        "federation": "FedSGD, 10 clients, all in every round, batch 1, 20 rounds",
        "adversary": "the server, passive",
        "sees": ("the model it broadcasts", "each client's gradient", "how many examples are behind it"),
        "changes": (),
        "given": ("labels", "batch_norm"),
        "data": "CIFAR-10 test images, 32 × 32, 3 channels",
        "data_public": public,
        "model": "ConvNet, width 64, 2.9 M parameters, untrained",
        "structural": structural,
    }
    return ThreatCard(**{**settings, **rest})


def refused(scenario: str, defenses: tuple[str, ...] = ()) -> Refused:
    return Refused(
        scenario=scenario,
        cell=cell(scenario, defenses, {}),
        axes={},
        defenses=defenses,
        subject="attack 'linear_input'",
        needs="an update computed from exactly 1 example",
        got="round 0, client 3: 4 examples",
        fix="set federation.batch = 1, or use 'inverting_gradients'",
    )


def pictures_exhibit(run: Path, scenario: str, *, size: int = 32) -> Exhibit:
    """Smooth shapes, and what noise leaves of them."""
    draw = np.random.default_rng(7)
    y, x = np.mgrid[0:size, 0:size] / size
    rows = []
    for i in range(4):
        shape = 0.5 + 0.5 * np.sin(
            (3 + i) * np.pi * (x * (i + 1) / 4 + y)[..., None] + np.array([0, 1.2, 2.1])
        )
        cut = np.where((x - 0.5) ** 2 + (y - 0.45) ** 2 < 0.08, 0.85, 0.15)[..., None]
        image = np.clip(0.55 * shape + 0.45 * cut, 0, 1)
        noisy = [np.clip(image + s * draw.normal(size=image.shape), 0, 1) for s in (0.06, 0.25, 0.6)]
        rows.append([image, *noisy, np.full_like(image, image.mean())])
    (run / "exhibits").mkdir(parents=True, exist_ok=True)
    file = f"exhibits/{scenario}.npz"
    np.savez(run / file, images=np.asarray(rows))
    columns = ["original", "IG", "GI", "IG, noise 0.1", "null"]
    return Exhibit(
        kind="pictures",
        scenario=scenario,
        title="Batch 1, four victims",
        file=file,
        caption="The four victims nearest to the median SSIM, without a defence and under noise.",
        data={"columns": columns, "rows": [f"victim {i}" for i in (3, 8, 11, 17)]},
        private=("original", "IG", "GI", "IG, noise 0.1"),
    )


def _swept() -> list[Settings]:
    """Two lines over values that span decades and hold 0, each with a line beside it."""
    xs = [0.0, 0.03, 0.1, 0.3, 1.0]
    lines: list[Settings] = []
    beside: list[Settings] = []
    for number, (name, own) in enumerate((("prior = mean", 0.58), ("prior = ridge", 0.53))):
        y = [own - 0.18 / (1 + 4 * x) for x in xs]
        low, high = [v - 0.04 for v in y], [v + 0.04 for v in y]
        lines.append({"name": name, "x": xs, "y": y, "low": low, "high": high})
        beside.append({"name": f"{name}: its prior image alone", "x": xs, "y": [own] * 5, "of": number})
    return lines + beside


def drawn_exhibits(scenario: str) -> list[Exhibit]:
    """One of each kind that is not pictures."""
    draw = np.random.default_rng(3)
    rounds = list(range(10, 310, 30))
    line = [
        {"name": n, "x": rounds, "y": y, "low": [v - 0.06 for v in y], "high": [v + 0.05 for v in y]}
        for n, y in (
            ("PROLIN", [0.35 + 0.5 * (1 - 0.99**r) for r in rounds]),
            ("REG", [0.33 + 0.42 * (1 - 0.99**r) for r in rounds]),
            ("OLS", [0.3 + 0.2 * (1 - 0.99**r) for r in rounds]),
        )
    ]
    null = {"name": "a coin with the known prior", "x": [10, 280], "y": [0.1, 0.1], "null": True}
    psnr = {
        "name": "Scale-MIA",
        "values": [*draw.normal(29, 2, 400).tolist(), *draw.normal(11, 1.5, 120).tolist()],
    }
    entropy = [
        (n, draw.normal(m, s, 60).clip(0, 1).tolist())
        for n, m, s in (
            ("natural", 0.93, 0.02),
            ("random", 0.97, 0.01),
            ("Maui", 0.91, 0.03),
            ("Robbing the Fed, identity kernels", 0.35, 0.3),
        )
    ]
    rows = [["Scale-MIA", 64, 0.94, 28.6, True], ["LOKI", 64, 0.88, None, False]]
    return [
        Exhibit(
            kind="lines",
            scenario=scenario,
            title="F1 against rounds",
            caption="Bands are 95 % intervals over six seeds.",
            data={"x_label": "rounds seen", "y_label": "F1", "series": [*line, null]},
        ),
        Exhibit(
            kind="lines",
            scenario=scenario,
            title="pli: SSIM against prior weight",
            caption="Values at equal distances, and a line beside each line.",
            data={"x_label": "prior weight", "y_label": "SSIM", "x_even": True, "series": _swept()},
        ),
        Exhibit(
            kind="lines",
            scenario=scenario,
            title="Gain against ε",
            caption="A logarithmic axis.",
            data={
                "x_label": "ε",
                "y_label": "gain in SSIM",
                "x_log": True,
                "series": [{"name": "GGL", "x": [10, 100, 1e4, 1e6], "y": [0.01, 0.03, 0.2, 0.34]}],
            },
        ),
        Exhibit(
            kind="histogram",
            scenario=scenario,
            title="PSNR of what came out",
            caption="Bimodal.",
            data={"x_label": "PSNR, dB", "series": [psnr]},
        ),
        Exhibit(
            kind="boxes",
            scenario=scenario,
            title="Entropy of weight vectors",
            caption="60 vectors each.",
            data={"y_label": "normalised entropy", "series": [{"name": n, "values": v} for n, v in entropy]},
        ),
        Exhibit(
            kind="table",
            scenario=scenario,
            title="The paper's Table III",
            caption="Reduced.",
            data={"columns": ["attack", "batch", "rate", "PSNR", "blind"], "rows": rows},
        ),
    ]


MANIFEST = {
    "format": 1,
    "version": "0.1.0",
    "commit": "13b107a4c1",
    "started": "2026-03-02T09:12:44Z",
    "device": "cpu",
    "seconds": 412.3,
    "seeds": [0, 1, 2],
    "packages": {"torch": "2.13.0", "numpy": "2.4.6", "scipy": "1.17.1"},
    "hashes": {"transcript": "b0c4…91", "truth": {"victims": "77aa" * 16}},
}


def limit(state: str, text: str, scenario: str = "inversion-defences") -> Limit:
    return Limit(scenario=scenario, subject="gain", limit=0.1, state=state, text=text)


LIMITS = (
    limit("broken", "Inverting Gradients, without a defence: the gain in SSIM is 0.41; tolerated: 0.1."),
    limit("undecided", "GGL, under clip L2 4: the gain in SSIM is 0.05; tolerated: 0.1."),
    limit("unmeasured", "DLG, without a defence: no gain in LPIPS was measured; tolerated: 0.2."),
    limit("holds", "GGL: the gain in SSIM is 0.002; tolerated: 0.1.", scenario="ward-7"),
)


def specimen(run: Path) -> Result:
    """Four scenarios: one that leaks, one of linear leakage, one private and quiet, one that cannot tell."""
    prolin = {"scenario": "prolin-membership", "attack": "prolin", "metric": "f1", "base": 0.1}
    masked = {"scenario": "ward-7", "base": 0.18}
    return Result(
        suite="hospital-federation",
        threats=(
            card("inversion-defences", limits={"ssim": 0.1, "lpips": 0.2}),
            card(
                "scale-mia",
                structural=True,
                changes=("the parameters it broadcasts", "the architecture"),
                adversary="the server, active",
                sees=("the sum of a round",),
            ),
            card(
                "ward-7",
                public=False,
                data="2,140 chest X-rays of ward 7, 64 × 64, grey",
                limits={"ssim": 0.1},
            ),
            card("prolin-membership", sees=("the sum of every round", "the cohorts"), given=("auxiliary",)),
        ),
        findings=(
            *matrix("inversion-defences"),
            finding(
                scenario="scale-mia", attack="scale_mia", metric="rate_blind", gain=0.93, half=0.01, base=0.0
            ),
            finding(
                scenario="scale-mia", attack="loki", metric="attribution", gain=0.6, half=0.05, base=0.125
            ),
            finding(gain=0.01, half=0.03, **masked),
            finding(gain=0.002, half=0.02, attack="ggl", defenses=("DP-SGD ε = 2",), **masked),
            finding(gain=0.09, half=0.16, verdict="not shown", **prolin),
            finding(gain=0.05, half=0.04, control=WEAK, verdict="no power", defenses=("noise 1",), **prolin),
        ),
        refusals=(
            *(refused("inversion-defences", d) for d in DEFENSES),
            Refused(
                scenario="scale-mia",
                cell="x",
                axes={},
                defenses=(),
                subject="metric 'lpips'",
                needs="the extra 'vision'",
                got="torchvision is not installed",
                fix="pip install 'glasshouse[vision]'",
            ),
        ),
        utility=tuple(utilities("inversion-defences")),
        exhibits=(
            pictures_exhibit(run, "inversion-defences"),
            pictures_exhibit(run, "ward-7", size=64),
            *drawn_exhibits("prolin-membership"),
        ),
        attacks=ATTACKS,
        metrics=METRICS,
        limits=LIMITS,
        manifest=MANIFEST,
    )


def large(run: Path) -> Result:
    """450 findings over 6 scenarios."""
    names = [f"cifar10-convnet-{kind}" for kind in ("b1", "b4", "trained", "fedavg", "noniid", "resnet18")]
    findings = [
        f for i, name in enumerate(names) for f in matrix(name, {"federation.batch": 4}, 1 - 0.15 * i)
    ]
    return Result(
        suite="nightly",
        findings=tuple(findings),
        threats=tuple(card(name) for name in names),
        refusals=tuple(refused(name, d) for name in names for d in DEFENSES),
        utility=tuple(u for name in names for u in utilities(name, {"federation.batch": 4})),
        exhibits=tuple(pictures_exhibit(run, name) for name in names[:2]),
        attacks=ATTACKS,
        metrics=METRICS,
        manifest=MANIFEST,
    )


def write(result: Result, run: Path) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    write_result(result, run / "result.json")
    return run
