"""``make results PAGE=dp``: every table of one page of docs/results again, by one command, in pieces.

``python -m benchmarks.pages PAGE [--out runs/results] [--list]``. Each piece is a command. What it prints is
kept in ``OUT/PAGE/NN.txt``, and an audit's run beside it in ``OUT/PAGE/NN``. A piece that ended is not run
again, an audit that was interrupted goes on where it was. Costs are CPU seconds of one core: as a page or the
log says, or one run of the piece; *estimated* ones come from ``glasshouse check``, from a shorter run or from
what a page says of a part. A core that others share takes up to 1.5 times as many. Training that an earlier
piece left in the cache is counted only there.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.long_pages import MAUI, PLI, PROLIN
from benchmarks.pieces import Piece, about, changed, price, run_pieces, total

ON_RESNET = (
    'model={name="resnet18",width=16}',
    "federation.clients=4",
    "audit.victims=4",
    "audit.controls=false",
)
OUT_SPEAR, OUT_END = ("--out", "{out}/spear"), ("--out", "{out}/end")
MLPS = ("--models", "mlp", "--seeds", "2")
QUALITY = ("speed", "quality", "--iterations", "60", "--out", "{out}")
SHORTER = ("speed", "quality", "--iterations", "40", "--out", "{out}")
FAST = ("plain loop", "Glasshouse, bfloat16", "Glasshouse, bfloat16, racing")
WIDE = ("ConvNet 8, 1 restart", "ConvNet 64, 8 restarts")
FLOWER = {"plain": 50, "dp": 50, "sums": 100, "crafted": 650, "crafted-default": 80, "overhead": 30}
LENETS = tuple(str(number) for number in range(19))  # the first updates of benchmarks.guard.forecast
ORGANIC = (
    *("--batches", "1", "8", "16", "32", "64", "128", "512", "--seeds", "9300", "9302"),
    *("--data", "cifar10@test", "mnist@test", "chest_xray@train"),
)
MITIGATION = ("guard", "mitigation", "--networks", "lenet5", "--seeds", *map(str, range(8)))
ROUNDS = ("guard", "mitigation", "--networks", "--attacked", *map(str, range(5, 14)))
LATER_ROUNDS = ("guard", "mitigation", "--networks", "--attacked", *map(str, range(14, 29)))
SOTERIA = 'axes={defenses=[{label="soteria 80 %", value=[{name="soteria", share=0.8}]}]}'
REFINED = "attacks.*.refinement.steps=60"
ATTACKED = (
    *("guard", "mitigation", "--networks", "lenet5", "--seeds", *"012345", "--attacked"),
    *("--federations", "plain", "attacked", "attacked-mitigated"),
)
NARROW = ("ConvNet 8, 8 restarts", "ConvNet 8, 1 restart")
CHECKED = ("fedavg-steps", "client-optimizers", "ggl", "dlg")
TUNED = ("batches2-64", "batches4-64", "batches8-64", "batches8-epochs3-64", "loki-batches2-epochs3-64")
TUNED += ("--split", "train", "--batches", "3")
ROUNDS_OF_64 = ("--sizes", "64", "256", "--repeats", "15")
TEXT = {
    "decoder": 1000, "class": 210, "beyond": 600, "llama": 370, "bert": 1800, "lora": 600, "fedavg": 1470,
    "sums": 340, "defences": 1100, "fresh": 860,
}  # fmt: skip
"""Tables of benchmarks.text, and their CPU seconds."""
PAGES: dict[str, tuple[Piece, ...]] = {
    "dp": (
        Piece(("one_run",), 28),
        *(
            Piece(("one_run", "--runs", "40", "--canaries", m, "--guesses", r), 10)
            for m, r in (("2000", "200"), ("5000", "500"), ("10000", "600"))
        ),
        Piece(("epsilon_federations", "--out", "{out}/federations.jsonl"), 800),
        Piece(("dp_gap", "--chart", "{out}/dp-gap.svg"), 2),
        Piece(("audit", "dp"), 400),
    ),
    "inversion": (
        Piece(("audit", "dlg"), 225),
        about(10500, "audit", "inversion-defences"),
        about(9300, "audit", "inversion-gradinversion"),
        Piece(("audit", "inversion-curves"), 2300),
        Piece(("audit", "inversion-trained"), 1830),
        Piece(("audit", "inversion-resnet"), 2000),
        Piece(("audit", "inversion-wide"), 3000, estimated=True, gpu=True),
        Piece(("audit", "fedavg-steps"), 120),
        Piece(("audit", "client-optimizers"), 330),
        about(80, "ghost"),
    ),
    "ggl": (
        Piece(("audit", "ggl"), 650),
        Piece(("audit", "ggl-strengths"), 710),
        Piece(("audit", "ggl-lfw"), 7500, estimated=True),
        about(1400, "audit", "ggl-lfw", *changed(SOTERIA, "attacks.*.restore=false")),
        about(1700, "audit", "ggl-lfw", *changed(SOTERIA, "attacks.*.restore=false", REFINED)),
        Piece(("audit", "ggl", *changed(*ON_RESNET)), 220),
        Piece(("audit", "ggl-cifar"), 620),
        Piece(("audit", "ggl-out-of-distribution"), 155),
        Piece(("audit", "quickstart-ggl"), 13),
        about(175, "ggl", "detector"),
        about(100, "ggl", "speed"),
        about(1150, "ggl", "optimisers"),
        about(140, "ggl", "optimisers", "--among", "cma_es", "--evaluations", "5000"),
        about(70, "ggl", "landscape"),
        about(140, "soteria"),
    ),
    "scale-mia": (
        about(1800, "audit", "scale-mia"),
        about(3900, "audit", "scale-mia-models"),
        about(210, "audit", "scale-mia-defences"),
        about(90, "audit", "scale-mia-structural"),
        Piece(("audit", "scale-mia-comparison"), 1450),
        about(6500, "scale_mia", "all", "--out", "{out}/rows.jsonl"),
        about(1500, "scale_mia_rounds"),
        Piece(("scale_mia", *TUNED, "--out", "{out}/tuning.jsonl"), 22),
        about(60, "scale_mia_speed", *ROUNDS_OF_64, "--threads", "2", "--clock"),
        about(60, "scale_mia_speed", *ROUNDS_OF_64),
        Piece(("scale_mia_speed", "--sizes", "256", "1024", "--repeats", "3"), 35),
    ),
    "active": (
        about(80, "active", "spear", "--seeds", "2", "--largest", "16", "--limit", "120", *OUT_SPEAR),
        Piece(("active", "table", *OUT_SPEAR), 2),
        about(1300, "active", "spear", "--searches", "descents", "--seeds", "1", "--largest", "48", *OUT_END),
        Piece(("active", "table", *OUT_END), 2),
        Piece(("active", "cah", "--seeds", "10"), 130),
        about(135, "active", "fishing", "--seeds", "5"),
        about(230, "seer", "rounds", "--seeds", "40"),
        about(130, "seer", "guard", "--seeds", "3"),
        Piece(("audit", "spear"), 25),
        Piece(("audit", "active-servers"), 189),
    ),
    "flower": (
        *(about(cost, "flower", run, "--out", "{out}") for run, cost in FLOWER.items()),
    ),
    "scale": (
        Piece(("scale", "--out", "{out}", "--chart", "{out}/scale.svg"), 420),
        Piece(("scale", "--processes", "1", "2"), 300),
        about(680, "scoring", "quickstart", "digits-inversion", "faces-64", "ggl", "--out", "{out}/scoring"),
        Piece(("check_costs", "--out", "{out}/check-costs"), 110),
        about(1320, "check_costs", *CHECKED, "--out", "{out}/check-costs"),
        *(
            Piece(("glasshouse", "check", preset), 15)
            for preset in ("ggl-cifar", "scale-mia", "prolin-countermeasures")
        ),
        about(180, "executors", "--iterations", "2700", "--out", "{out}/executors"),
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
        Piece(("guard", "evasions", "--out", "{out}/evasions"), 1430),
        Piece(("guard", "pursuit", "kinds", "--out", "{out}/kinds.jsonl"), 300),
        Piece(("guard", "pursuit", "adaptive", "--out", "{out}/adaptive.jsonl", "--seeds", "0", "1"), 200),
        Piece(("guard", "pursuit", "cost", "--out", "{out}/cost.jsonl"), 40),
        Piece(("guard", "pursuit", "zoo", "--out", "{out}/zoo.jsonl", "--seeds", "0", "1"), 700),
        about(4900, "guard", "organic", *ORGANIC, "--out", "{out}/organic"),
        Piece(("guard", "crafted", "--data", "cifar10", *MLPS, "--out", "{out}/guard.json"), 21),
        Piece(("guard", "preflight", "--seeds", "3", "4", "--out", "{out}/preflight"), 600),
        Piece(("guard", "sums"), 15),
        Piece(("guard", "forecast", "--out", "{out}/forecast"), 250),
        Piece(("guard", "forecast", "--seeds", "2", "--updates", *LENETS, "--out", "{out}/forecast"), 75),
        about(20, "guard", "cost", "--networks", "lenet5"),
        about(80, "guard", "cost", "--networks", "resnet18", "--trained", "256", "--times", "1"),
        Piece((*MITIGATION, "--out", "{out}/mitigation"), 2400),
        Piece((*ATTACKED, "--out", "{out}/mitigation"), 1200),
        Piece((*ROUNDS, "--out", "{out}/mitigation"), 310),
        Piece((*LATER_ROUNDS, "--out", "{out}/mitigation"), 540),
    ),
    "speed": (
        Piece(("speed", "iteration", "--out", "{out}"), 400),
        Piece(("speed", "victims", "--victims", "16", "--out", "{out}"), 120),
        Piece((*QUALITY, "--setting", *NARROW), 240),
        Piece((*QUALITY, "--setting", "ResNet-18, 8 restarts"), 1550),
        Piece((*SHORTER, "--setting", "ConvNet 64, 8 restarts", "--ways", *FAST), 1400),
        Piece((*QUALITY, "--split", "train", "--setting", NARROW[0]), 110),
        Piece((*QUALITY, "--split", "train", "--victims", "1", "--setting", "ResNet-18, 8 restarts"), 130),
        Piece(("audit", "quickstart", "--jobs", "1"), 35),
        *(
            Piece(("speed", *words, "--device", "cuda", "--out", "{out}"), 30, estimated=True, gpu=True)
            for words in (
                ("iteration", "--repeats", "3"),
                ("victims", "--repeats", "3"),
                ("quality", "--iterations", "60", "--victims", "1", "--setting", *WIDE),
            )
        ),
    ),
    "prolin": PROLIN,
    "maui": MAUI,
    "text": (
        *(about(cost, "text", "{out}/pieces", "--tables", table) for table, cost in TEXT.items()),
        about(5, "text_tables", "{out}/pieces", "--chart", "{out}/text-beyond.svg"),
        Piece(("text_membership", "{out}/membership"), 1100),
        Piece(("text_membership", "{out}/membership256", "--width", "256", "--batches", "4"), 210),
        Piece(("text_utility", "{out}/utility"), 225),
        Piece(("text_baselines", "{out}/baselines"), 760),
        about(5, "text_baselines", "{out}/baselines", "--show"),
        Piece(("text_speed", "{out}/speed", "--batches", "1,2,8,16"), 2600),
        Piece(("text_speed", "{out}/speed", "--growth"), 150),
    ),
    "pli": PLI,
}  # fmt: skip


def main() -> int:
    """Run a page, or list what it would run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=sorted(PAGES))
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--list", action="store_true", help="print the pieces and their cost, run nothing")
    arguments = parser.parse_args()
    pieces = PAGES[arguments.page]
    if not arguments.list:
        return run_pieces(pieces, arguments.out / arguments.page)
    for number, piece in enumerate(pieces, start=1):
        print(f"{number:3d}  {' '.join(piece.command)}  ({price(piece)})")
    print(f"total: {total(pieces)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
