"""``make results PAGE=dp``: every table of one page of docs/results again, by one command, in pieces.

``python -m benchmarks.pages PAGE [--out runs/results] [--list]``. Each piece is a command. What it prints is
kept in ``OUT/PAGE/NN.txt``, and an audit's run beside it in ``OUT/PAGE/NN``. A piece that ended is not run
again, an audit that was interrupted goes on where it was. The cost is what the page measured, in CPU seconds
of one core; None: the page does not say.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Piece:
    """One command: ``audit`` and its arguments, or a module of ``benchmarks`` and its own.

    Attributes:
        command: words.
        cost: CPU seconds; None: nobody measured it.
    """

    command: tuple[str, ...]
    cost: int | None = None


def audits(*presets: str) -> tuple[Piece, ...]:
    """One piece per preset."""
    return tuple(Piece(("audit", *preset.split())) for preset in presets)


def rounds_of(preset: str, cells: Sequence[int], cost: int | None = None) -> tuple[Piece, ...]:
    """Six seeds of a preset of many rounds, then its table."""
    return tuple(
        piece
        for cell in cells
        for piece in (
            *(
                Piece(
                    ("prolin", "run", preset, "--cell", str(cell), "--seed", str(s), "--out", "{out}"), cost
                )
                for s in range(6)
            ),
            Piece(("prolin", "table", f"{{out}}/{preset}/cell{cell}"), 1),
        )
    )


def trained(robust: int, natural: int) -> str:
    """Epochs of the public features of ``maui``."""
    return (
        'axes_zipped=[{"model.pretraining.adversarial.method"=["fgsm","none"],'
        f'"model.pretraining.epochs"=[{robust},{natural}]}}]'
    )


def resnet(width: int, robust: int, natural: int, *, moved: bool = True) -> tuple[str, ...]:
    """A narrow ResNet-18 with a head of 512 units as the network of ``maui``."""
    changes = ['model.name="resnet18"', f"model.width={width}", "model.hidden=512", trained(robust, natural)]
    changes += [] if moved else ["model.pretraining.flip=false", "model.pretraining.shift=0"]
    return tuple(word for change in changes for word in ("--set", change))


SHUFFLENET = (
    *("--set", 'model.name="shufflenet_v2"', "--set", "model.hidden=512", "--set", "data.public=10000"),
    *("--set", trained(4, 4)),
)
ONE_HEAD = (
    *("axes_zipped=[]", 'model.pretraining.adversarial.method="fgsm"', "federation.rounds=6"),
    *("audit.rounds=[2,3,4,5]", 'federation.keep.rounds="all"'),
    'attacks=[{name="maui", head={mode="exemplars", output_epochs=20}, inversion={iterations=1}}]',
    'audit.metrics=["leakage","leakage_precision"]',
)
MLPS = ("--models", "mlp", "--seeds", "2")
MAUI = ("features", "heads", "inversion", "batches", "preimages", "guard", "crafted", "speed", "outside")
SENT = tuple(
    Piece(("audit", "maui", *(word for change in (*ONE_HEAD, *more) for word in ("--set", change))))
    for more in (
        ("data.examples=32",),
        ("data.examples=32", "federation.secure_sum=true"),
        ("data.examples=32", 'federation.sends="delta"'),
        (
            *("data.examples=32", 'federation.sends="delta"', "federation.clients=32"),
            *("federation.cohort=0.25", "data.heldout=500"),
        ),
    )
)
"""What clients send, and what the server sees of it."""
TEXT = (
    "decoder", "class", "beyond", "llama", "bert", "lora", "fedavg", "sums", "defences", "fresh",
)  # fmt: skip
LENETS = tuple(str(number) for number in range(19))  # the first updates of benchmarks.guard.forecast
PAGES: dict[str, tuple[Piece, ...]] = {
    "dp": (
        Piece(("one_run",), 28),
        *(
            Piece(("one_run", "--runs", "40", "--canaries", m, "--guesses", r), 10)
            for m, r in (("2000", "200"), ("5000", "500"), ("10000", "600"))
        ),
        Piece(("epsilon_federations", "--out", "{out}/federations.jsonl"), 800),
        Piece(("dp_gap", "--chart", "{out}/dp-gap.svg"), 1),
        Piece(("audit", "dp"), 1100),
    ),
    "inversion": (
        Piece(("audit", "dlg"), 310),
        Piece(("audit", "inversion-defences"), 3660),
        Piece(("audit", "inversion-curves"), 2300),
        Piece(("audit", "inversion-trained"), 1830),
        Piece(("audit", "inversion-resnet"), 1660),
        *audits("inversion-wide"),
        Piece(("audit", "fedavg-steps"), 200),
        Piece(("audit", "client-optimizers"), 335),
        Piece(("ghost",)),
    ),
    "ggl": (
        Piece(("audit", "ggl"), 1190),
        Piece(("audit", "ggl-strengths"), 1320),
        Piece(("audit", "ggl-lfw"), 4700),
        *audits("ggl-cifar", "ggl-out-of-distribution", "quickstart-ggl"),
        *(Piece(("ggl", what)) for what in ("detector", "speed", "optimisers", "landscape")),
        Piece(("soteria",)),
    ),
    "scale-mia": (
        *audits(
            *("scale-mia", "scale-mia-models", "scale-mia-defences"),
            *("scale-mia-structural", "scale-mia-comparison"),
        ),
        Piece(("scale_mia", "all", "--out", "{out}/rows.jsonl")),
        Piece(("scale_mia_rounds",)),
        Piece(("scale_mia_speed",)),
        Piece(("scale_mia_speed", "--sizes", "256", "1024", "--repeats", "3"), 35),
    ),
    "active": (
        Piece(("active", "spear", "--out", "{out}/spear"), None),
        Piece(("active", "table", "--out", "{out}/spear"), 2),
        Piece(("active", "cah", "--seeds", "10"), 130),
        Piece(("active", "fishing", "--seeds", "5")),
        Piece(("seer", "rounds", "--seeds", "40")),
        Piece(("seer", "guard", "--seeds", "3")),
        *audits("spear", "active-servers"),
    ),
    "flower": tuple(
        Piece(("flower", run, "--out", "{out}"))
        for run in ("plain", "dp", "sums", "crafted", "crafted-default", "overhead")
    ),
    "scale": (
        Piece(("scale", "--out", "{out}", "--chart", "{out}/scale.svg"), 130),
        Piece(("scale", "--processes", "1", "2"), 300),
        Piece(("scoring", "--out", "{out}/scoring"), None),
        Piece(("check_costs", "--out", "{out}/check-costs"), 110),
    ),
    "defence-check": (
        Piece(("defence_check", "--seed", "200", "--clients", "5", "--defended", "2"), 150),
        Piece(("defence_check", "--seed", "200", "--clients", "2", "--defended", "1", "--parameters"), 68),
        *(
            Piece(("defence_check", "--seed", seed, "--clients", "9", "--defended", "2", "--parameters"), 117)
            for seed in ("204", "205")
        ),
    ),
    "guard": (
        Piece(
            ("guard", "crafted", "--data", "cifar10", *MLPS, "--out", "{out}/guard.json"),
            14,
        ),
        Piece(("guard", "evasions", "--out", "{out}/evasions"), None),
        Piece(("guard", "organic", "--seeds", "7100", "7105", "--out", "{out}/organic"), None),
        Piece(("guard", "forecast", "--out", "{out}/forecast"), 250),
        Piece(("guard", "forecast", "--seeds", "2", "--updates", *LENETS, "--out", "{out}/forecast"), 75),
    ),
    "speed": (
        Piece(("speed", "iteration", "--out", "{out}"), 400),
        Piece(("speed", "victims", "--out", "{out}"), 60),
        Piece(("speed", "quality", "--iterations", "60", "--out", "{out}"), None),
    ),
    "prolin": (
        Piece(
            (
                *("prolin", "run", "prolin-membership", "--cell", "0", "1", "--seed"),
                *(str(seed) for seed in range(100, 110)),
                *("--out", "{out}/unused"),
            ),
            6400,
        ),
        *(Piece(("prolin", "table", f"{{out}}/unused/cell{cell}"), 1) for cell in (0, 1)),
        *rounds_of("prolin-membership", (0, 1), 165),
        *rounds_of("prolin-misbehaving", (0, 1)),
        *rounds_of("prolin-ascent", (0,), 270),
        *audits("prolin-countermeasures"),
        Piece(("prolin_speed", "tau")),
        Piece(("prolin_speed", "round", "--pairs", "200")),
    ),
    "maui": (
        *audits("maui"),
        *SENT,
        *(Piece(("maui", what)) for what in MAUI),
        Piece(("maui", "dp", "--images", "32")),
        Piece(("maui", "units")),
        Piece(("maui", "features", "architecture", "--images", "32", *resnet(16, 5, 4))),
        Piece(("maui", "preimages", *resnet(16, 5, 15, moved=False))),
        Piece(("maui", "architecture", "features", "--images", "32", *resnet(32, 2, 1)), 1000),
        Piece(("maui_pictures", *resnet(32, 2, 1)), 300),
        Piece(("maui", "features", "architecture", *SHUFFLENET)),
        Piece(("maui_rounds",)),
    ),
    "text": (
        *(Piece(("text", "{out}/pieces", "--tables", table)) for table in TEXT),
        Piece(("text_tables", "{out}/pieces", "--chart", "{out}/text-beyond.svg")),
        Piece(("text_membership", "{out}/membership"), 1100),
        Piece(("text_membership", "{out}/membership256", "--width", "256", "--batches", "4"), 210),
        Piece(("text_utility", "{out}/utility"), 600),
        Piece(("text_baselines", "{out}/baselines")),
        Piece(("text_baselines", "{out}/baselines", "--show")),
        Piece(("text_speed", "{out}/speed"), 1500),
        Piece(("text_speed", "{out}/speed", "--growth"), 150),
    ),
    "pli": (
        Piece(("audit", "pli")),
        *audits("pli-priors", "pli-mnist", "pli-defences --set audit.seeds=[66,85,91]"),
        *audits(*(f"pli-fedavg --set federation.clients={k}" for k in (1, 2, 10))),
        Piece(("pli_lfw", "run", "--out", "{out}/lfw")),
        Piece(("pli_lfw", "table", "--out", "{out}/lfw")),
        Piece(("pli_speed",)),
    ),
}  # fmt: skip


def words_of(piece: Piece, place: Path, number: int) -> list[str]:
    """The command line of a piece."""
    first, *rest = (word.replace("{out}", str(place)) for word in piece.command)
    if first != "audit":
        return [sys.executable, "-m", f"benchmarks.{first}", *rest]
    run = place / f"{number:02d}"
    resume = ["--resume"] if (run / "scenario.given.toml").exists() else []
    program = Path(sys.executable).with_name("glasshouse")
    return [str(program), "audit", *rest, "--out", str(run), *resume]


def run_page(page: str, out: Path) -> int:
    """Run what is missing of a page; the number of pieces that failed."""
    place, failed = out / page, 0
    place.mkdir(parents=True, exist_ok=True)
    for number, piece in enumerate(PAGES[page], start=1):
        done, text = place / f"{number:02d}.json", place / f"{number:02d}.txt"
        if done.exists():
            continue
        print(f"== {number} of {len(PAGES[page])}: {' '.join(piece.command)} ({price(piece)})", flush=True)
        started, busy = time.time(), _children()
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with text.open("w", encoding="utf-8") as file:
            status = subprocess.run(
                words_of(piece, place, number),
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                check=False,
            ).returncode
        if status in (0, 1, 3):  # 1 and 3: a finished audit with a broken or an open limit
            spent = {"seconds": round(time.time() - started), "cpu_seconds": round(_children() - busy)}
            facts = {"command": piece.command, "status": status, **spent}
            done.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        failed += status not in (0, 1, 3)
    return failed


def _children() -> float:
    """Processor time of all commands that ended so far."""
    spent = os.times()
    return spent.children_user + spent.children_system


def price(piece: Piece) -> str:
    """What a piece costs, in words."""
    return "cost not stated on the page" if piece.cost is None else f"about {piece.cost:,} CPU seconds"


def main() -> int:
    """Run a page, or list what it would run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=sorted(PAGES))
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--list", action="store_true", help="print the pieces and their cost, run nothing")
    arguments = parser.parse_args()
    if arguments.list:
        for number, piece in enumerate(PAGES[arguments.page], start=1):
            print(f"{number:3d}  {' '.join(piece.command)}  ({price(piece)})")
        return 0
    return run_page(arguments.page, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
