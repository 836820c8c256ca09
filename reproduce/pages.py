"""``make results PAGE=dp``: every table of one page of docs/results again, by one command, in pieces.

``python -m reproduce.pages PAGE [--out runs/results] [--list]``. Each piece is a command. What it prints is
kept in ``OUT/PAGE/NN.txt``, and an audit's run beside it in ``OUT/PAGE/NN``. A piece that ended is not run
again, an audit that was interrupted goes on where it was. Costs are CPU seconds of one core: as a page or the
log says, or one run of the piece; *estimated* ones come from ``glasshouse check``, from a shorter run or from
what a page says of a part. A core that others share takes up to 1.5 times as many. Training that an earlier
piece left in the cache is counted only there.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from reproduce.pieces import Piece, about, changed, price, run_pieces, total


def rounds_of(
    preset: str,
    cell: int,
    seeds: Iterable[int],
    cost: int,
    *changes: str,
    at: str = "",
    name: str = "",
    estimated: bool = False,
) -> tuple[Piece, ...]:
    """Seeds of a preset of many rounds, then their table, at the numbers of rounds in ``at``."""
    out = f"{{out}}/{name or preset}"
    run = ("prolin", "run", preset, "--cell", str(cell), "--out", out, *changed(*changes), "--seed")
    return (
        *(Piece((*run, str(seed)), cost, estimated) for seed in seeds),
        Piece(("prolin", "table", f"{out}/cell{cell}", *(("--at", *at.split()) if at else ())), 5),
    )


CHOSEN = (
    *("quickstart-text", "quickstart-rounds", "digits-inversion", "pli-digits"),
    *("quickstart-secure-sum", "quickstart-photos", "quickstart-ggl", "quickstart-transfer"),
)
"""Parts of the quickstart that are audited by hand and by choice."""
SHADOWS = "attacks.*.method={pairs=200,pool=600}"
"""L-BFGS instead of the discriminant."""
PULL = 'attacks.*.method={pairs=100,pool=300,detector="discriminant",skewed=true}'
"""The first step's pull, on shadow clients of few or many classes."""
AUTHORS = (SHADOWS, "federation.local_epochs=2", 'data.partition="shards"')
"""The setting of the authors' code, but for the number of shards and of shadow clients."""
TOLD = "attacks.prolin_posterior.prior=0.1"
"""The posterior is told the share, as on the page."""
SIZES = (
    (1, ("data.examples=20", "federation.batch_size=20")),
    (1, ("data.examples=30", "federation.batch_size=30")),
    (
        0,
        (
            *("data.examples=50", "federation.batch_size=50"),
            *('data.private_split="train"', "data.auxiliary=4000"),
        ),
    ),
    (0, ("federation.clients=100", 'data.private_split="train"', "data.auxiliary=4000")),
    (0, ("federation.clients=200", 'data.private_split="train"', "data.auxiliary=4000")),
)
"""Sizes of clients and of the federation: cell and changes."""
SOMETIMES = (
    'federation.behaviours=[{name="intermittent",clients=5,probability=0.5,behaviour="gradient_inversion"}]'
)
PROLIN: tuple[Piece, ...] = (
    *rounds_of("prolin-membership", 0, range(100, 107), 290, name="first"),
    *rounds_of("prolin-membership", 0, range(107, 110), 290, name="second"),
    *rounds_of("prolin-membership", 1, range(100, 106), 290, name="first"),
    *rounds_of("prolin-membership", 1, range(106, 110), 290, name="second"),
    *rounds_of("prolin-estimator", 0, range(100, 103), 370),
    *rounds_of("prolin-estimator", 0, range(100, 103), 770, *AUTHORS, name="authors"),
    *rounds_of("prolin-estimator", 0, (102,), 500, *AUTHORS[1:], PULL, name="pull", estimated=True),
    about(450, "prolin_oracle", "--out", "{out}/oracle", "--rounds", "100", "--seed", "103", "104", "105"),
    *rounds_of("prolin-membership", 0, range(6), 165),
    *rounds_of("prolin-membership", 1, range(6), 165),
    *rounds_of("prolin-membership", 1, range(6), 200, SHADOWS, name="lbfgs", estimated=True),
    *rounds_of("prolin-misbehaving", 0, range(6), 170, SHADOWS, TOLD, at="50 100 150", estimated=True),
    *rounds_of("prolin-ascent", 0, range(6), 270, TOLD, at="50 100 150"),
    about(2200, "audit", "prolin-countermeasures", *changed(TOLD)),
    *rounds_of(
        *("prolin-misbehaving", 0, range(2), 170, SHADOWS, TOLD, SOMETIMES),
        at="100 150",
        name="intermittent",
        estimated=True,
    ),
    *(
        piece
        for number, (cell, changes) in enumerate(SIZES)
        for piece in rounds_of(
            *("prolin-membership", cell, range(3), 80, "federation.rounds=100", *changes),
            at="50 100",
            name=f"size{number}",
            estimated=True,
        )
    ),
)  # fmt: skip


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
    return changed(*changes)


SHUFFLENET = changed('model.name="shufflenet_v2"', "model.hidden=512", "data.public=10000", trained(4, 4))
SHUFFLENET_ON_ALL = changed('model.name="shufflenet_v2"', "model.hidden=512", trained(2, 1))
ONE_MODEL = ("axes_zipped=[]", 'model.pretraining.adversarial.method="fgsm"')
ONE_HEAD = (
    *(*ONE_MODEL, "federation.rounds=6", "audit.rounds=[2,3,4,5]", 'federation.keep.rounds="all"'),
    'attacks=[{name="maui", head={mode="exemplars", output_epochs=20}, inversion={iterations=1}}]',
    'audit.metrics=["leakage","leakage_precision"]',
)
SENT = tuple(
    about(cost, "audit", "maui", *changed(*ONE_HEAD, "data.examples=32", *more))
    for cost, more in (
        (110, ()),
        (110, ("federation.secure_sum=true",)),
        (110, ('federation.sends="delta"',)),
        (
            130,
            (
                *('federation.sends="delta"', "federation.clients=32"),
                *("federation.cohort=0.25", "data.heldout=500"),
            ),
        ),
    )
)
"""What clients send, and what the server sees of it."""
READ = 'audit.metrics=["leakage","leakage_precision","psnr","ssim"]'
OUTSIDE = (
    ('data.private_source="npz:mnist_10k.npz"', READ),
    ('data.private_source="npz:orl_faces_64.npz"', 'data.private_split="train"', READ),
)
"""Private data of another kind, through Maui's head."""
SMALL = ("--images", "32", "--pairs", "24")
PARTS = {
    "features": 40, "heads": 300, "searched": 800, "inversion": 160, "batches": 60,
}  # fmt: skip
"""Parts of reproduce.maui, and their CPU seconds."""
LONGER = {(5, 20): 1200, (10, 35): 3300, (5, 35): 30}
"""Epochs, robust and natural, of ResNet-18; what was trained before is not trained again."""
MAUI: tuple[Piece, ...] = (
    about(2800, "audit", "maui"),
    *SENT,
    *(about(840, "audit", "maui", *changed(*ONE_MODEL, *where)) for where in OUTSIDE),
    *(about(cost, "maui", what) for what, cost in PARTS.items()),
    about(20, "maui", "preimages", "--pairs", "24"),
    about(90, "maui", "dp", "--images", "32"),
    Piece(("maui", "features", "--set", trained(8, 6)), 614),
    about(1050, "maui", "features", "architecture", "preimages", *SMALL, *resnet(16, 5, 4)),
    about(1550, "maui", "preimages", *resnet(16, 5, 15, moved=False)),
    *(about(cost, "maui", "preimages", *SMALL, *resnet(16, *epochs)) for epochs, cost in LONGER.items()),
    about(100, "maui", "preimages", *resnet(16, 5, 35)),
    about(1550, "maui", "architecture", "features", "--images", "32", *resnet(32, 2, 1)),
    Piece(("maui_pictures", *resnet(32, 2, 1)), 300),
    about(700, "maui", "features", "architecture", "preimages", *SMALL, *SHUFFLENET),
    about(900, "maui", "architecture", *SHUFFLENET_ON_ALL),
)  # fmt: skip
BLUR = ('data.domains.shifts=[{name="box_blur"}]',)
CLIENTS = 'axes."federation.clients"='
TBI_ALONE = 'attacks=[{name="tbi",training={width=64,epochs=1,batch_size=16,learning_rate=1e-3}}]'
LFW = ("--bfloat16", "--out", "{out}/lfw", "--only")
LFW_TEN = ("--bfloat16", "--out", "{out}/lfw10", "--only")
TEN = ("10", *changed("data.domains.identities=200", "data.domains.targets=60"))
PROTOCOLS = ("fedmd", "fedgems", "dsfl")
FEDMD_ALONE = ('axes."federation.protocol"=["fedmd"]', CLIENTS + "[1]")
TBI = (CLIENTS + "[10]", TBI_ALONE, 'audit.contrast=""', "audit.controls=false")
FACESCRUB = (*BLUR, "data.domains.same_photos=false")
PLI: tuple[Piece, ...] = (
    about(5000, "audit", "pli"),
    *(about(400, "audit", "pli", *changed(*more, *TBI)) for more in ((), FACESCRUB)),
    about(900, "audit", "pli-priors"),
    *(
        about(cost, "audit", "pli-mnist", "--set", f'federation.protocol="{protocol}"')
        for protocol, cost in (("fedmd", 85), ("fedgems", 100), ("dsfl", 85))
    ),
    about(400, "audit", "pli-defences", *changed("audit.seeds=[66,85,91]")),
    *(
        Piece(("audit", "pli-fedavg", "--set", f"federation.clients={k}"), cost)
        for k, cost in ((1, 43), (2, 34), (10, 76))
    ),
    about(4000, "audit", "pli", *changed(*FACESCRUB)),
    about(220, "audit", "pli", *changed(*FEDMD_ALONE, "data.domains.targets=20")),
    *(Piece(("pli_lfw", "run", *LFW, name, "1"), 1000, True) for name in PROTOCOLS),
    *(Piece(("pli_lfw", "run", *LFW_TEN, name, *TEN), 1700, True) for name in PROTOCOLS),
    Piece(("pli_lfw", "table", "--out", "{out}/lfw"), 400, True),
    Piece(("pli_lfw", "table", "--out", "{out}/lfw10"), 60, True),
)  # fmt: skip


AS_PRESET = ("--generator", "preset", "--trials", "4", "--evaluations", "1500")
IN_GROUPS = ("--groups", "10", "--trials", "4", "--people", "2")
SCORED = ("quickstart", "digits-inversion", "faces-64", "ggl")
AGAIN = ("benchmarks.guard", "forecast", "--seeds", "2", "--updates")
ON_GPU = ("--device", "cuda", "--out", "{out}")
ON_RESNET = (
    'model={name="resnet18",width=16}',
    "federation.clients=4",
    "audit.victims=4",
    "audit.controls=false",
)
OUT_SPEAR, OUT_END = ("--out", "{out}/spear"), ("--out", "{out}/end")
QUALITY = ("benchmarks.speed", "quality", "--iterations", "60", "--out", "{out}")
SHORTER = ("benchmarks.speed", "quality", "--iterations", "40", "--out", "{out}")
FAST = ("plain loop", "Glasshouse, bfloat16", "Glasshouse, bfloat16, racing")
WIDE = ("ConvNet 8, 1 restart", "ConvNet 64, 8 restarts")
FLOWER = {"plain": 50, "dp": 50, "sums": 100, "crafted": 650, "crafted-default": 80, "overhead": 30}
LENETS = tuple(str(number) for number in range(19))  # the first updates of benchmarks.guard.forecast
PURSUED = (
    ("kinds", ("--seeds", "0", "2"), 300),
    ("hidden", ("--seeds", "0", "1"), 1200),
    ("delayed", ("--seeds", "0", "2"), 110),
    ("columns", ("--seeds", "0", "2"), 150),
    ("recall", ("--seeds", "30", "33"), 80),
    ("adaptive", ("--seeds", "0", "1"), 300),
    ("zoo", ("--seeds", "0", "1"), 360),
    ("cost", (), 30),
)
MITIGATION = ("benchmarks.guard", "mitigation", "--networks", "lenet5", "--seeds", *map(str, range(8)))
ROUNDS = ("benchmarks.guard", "mitigation", "--networks", "--attacked", *map(str, range(5, 14)))
LATER_ROUNDS = ("benchmarks.guard", "mitigation", "--networks", "--attacked", *map(str, range(14, 29)))
SOTERIA = 'axes={defenses=[{label="soteria 80 %", value=[{name="soteria", share=0.8}]}]}'
REFINED = "attacks.*.refinement.steps=60"
ATTACKED = (
    *("benchmarks.guard", "mitigation", "--networks", "lenet5", "--seeds", *"012345", "--attacked"),
    *("--federations", "plain", "attacked", "attacked-mitigated"),
)
NARROW = ("ConvNet 8, 8 restarts", "ConvNet 8, 1 restart")
TUNED = ("batches2-64", "batches4-64", "batches8-64", "batches8-epochs3-64", "loki-batches2-epochs3-64")
TUNED += ("--split", "train", "--batches", "3")
TEXT = {
    "decoder": 1000, "class": 210, "beyond": 600, "llama": 370, "bert": 1800, "lora": 600, "fedavg": 1470,
    "sums": 340, "defences": 1100, "fresh": 860,
}  # fmt: skip
"""Tables of reproduce.text, and their CPU seconds."""
CENSUS = ("--data", "adult")
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
        Piece(("training", "--out", "{out}/training"), 560),
        Piece(("audit", "fedavg-steps"), 120),
        Piece(("audit", "client-optimizers"), 330),
    ),
    "ggl": (
        about(1500, "ggl_networks", "--out", "{out}/preset", "--defences", "none", *AS_PRESET),
        about(1900, "ggl_networks", "--out", "{out}/preset", "--people", "4", *AS_PRESET),
        about(420, "ggl_networks", "--out", "{out}/four", "--defences", "none", "--trials", "4"),
        about(260, "ggl_networks", "--out", "{out}/one", "--defences", "none"),
        about(110, "ggl_networks", "--out", "{out}/groups", "--defences", "none", *IN_GROUPS),
        Piece(("audit", "ggl"), 650),
        Piece(("audit", "ggl-strengths"), 710),
        Piece(("audit", "ggl-lfw"), 7500, estimated=True),
        about(1400, "audit", "ggl-lfw", *changed(SOTERIA, "attacks.*.restore=false")),
        about(1700, "audit", "ggl-lfw", *changed(SOTERIA, "attacks.*.restore=false", REFINED)),
        Piece(("audit", "ggl", *changed(*ON_RESNET)), 220),
        Piece(("audit", "ggl-cifar"), 620),
        Piece(("audit", "ggl-out-of-distribution"), 155),
        Piece(("audit", "quickstart-ggl"), 13),
        about(175, "ggl"),
    ),
    "scale-mia": (
        about(1800, "audit", "scale-mia"),
        about(3900, "audit", "scale-mia-models"),
        about(210, "audit", "scale-mia-defences"),
        about(90, "audit", "scale-mia-structural"),
        Piece(("audit", "scale-mia-comparison"), 1450),
        about(6500, "scale_mia", "all", "--out", "{out}/rows.jsonl"),
        Piece(("scale_mia", *TUNED, "--out", "{out}/tuning.jsonl"), 22),
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
    "auto": (
        about(150, "auto", "compare", "{out}", *CHOSEN, "--budget", "30 s"),
        about(5, "auto", "table", "{out}"),
    ),
    "flower": (
        *(about(cost, "flower", run, "--out", "{out}") for run, cost in FLOWER.items()),
    ),
    "scale": (
        Piece(("benchmarks.scale", "--out", "{out}", "--chart", "{out}/scale.svg"), 420),
        Piece(("benchmarks.scale", "--processes", "1", "2"), 300),
        about(680, "benchmarks.scoring", *SCORED, "--out", "{out}/scoring"),
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
        *(
            about(cost, "benchmarks.guard", "pursuit", part, *seeds, "--out", f"{{out}}/{part}.jsonl")
            for part, seeds, cost in PURSUED
        ),
        Piece(("benchmarks.guard", "preflight", "--seeds", "3", "4", "--out", "{out}/preflight"), 600),
        about(110, "benchmarks.guard", "traps"),
        about(300, "benchmarks.guard", "rounds"),
        Piece(("benchmarks.guard", "sums"), 15),
        Piece(("benchmarks.guard", "forecast", "--out", "{out}/forecast"), 250),
        Piece((*AGAIN, *LENETS, "--out", "{out}/forecast"), 75),
        about(20, "benchmarks.guard", "cost", "--networks", "lenet5"),
        about(80, "benchmarks.guard", "cost", "--networks", "resnet18", "--trained", "256", "--times", "1"),
        Piece((*MITIGATION, "--out", "{out}/mitigation"), 2400),
        Piece((*ATTACKED, "--out", "{out}/mitigation"), 1200),
        Piece((*ROUNDS, "--out", "{out}/mitigation"), 310),
        Piece((*LATER_ROUNDS, "--out", "{out}/mitigation"), 540),
    ),
    "speed": (
        Piece(("benchmarks.speed", "iteration", "--out", "{out}"), 400),
        Piece(("benchmarks.speed", "victims", "--victims", "16", "--out", "{out}"), 120),
        Piece((*QUALITY, "--setting", *NARROW), 240),
        Piece((*QUALITY, "--setting", "ResNet-18, 8 restarts"), 1550),
        Piece((*SHORTER, "--setting", "ConvNet 64, 8 restarts", "--ways", *FAST), 1400),
        Piece((*QUALITY, "--split", "train", "--setting", NARROW[0]), 110),
        Piece((*QUALITY, "--split", "train", "--victims", "1", "--setting", "ResNet-18, 8 restarts"), 130),
        Piece(("audit", "quickstart", "--jobs", "1"), 35),
        *(
            Piece(("benchmarks.speed", *words, *ON_GPU), 30, estimated=True, gpu=True)
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
        Piece(("text_baselines", "{out}/baselines"), 760),
        about(5, "text_baselines", "{out}/baselines", "--show"),
    ),
    "pli": PLI,
    "tables": (
        about(675, "audit", "reproduce/census.toml"),
        about(80, "audit", "adult-mlp"),
        about(45, "trees", "rows", *CENSUS),
        about(20, "slabs", "--guard", *CENSUS),
    ),
    "tree-defences": (
        about(45, "tree_defences", "rounded", *CENSUS),
        about(20, "tree_defences", "private", *CENSUS, "--seeds", "1"),
        about(35, "tree_defences", "bounds", "--seeds", "1"),
        about(100, "tree_defences", "bounds", *CENSUS, "--seeds", "3"),
        about(15, "tree_defences", "sgd", *CENSUS, "--seeds", "1"),
    ),
    "trees": (
        about(30, "trees", "counts", *CENSUS),
        about(110, "trees", "cells", *CENSUS),
        about(140, "trees", "curves"),
        about(15, "trees", "people"),
        about(25, "trees", "people", *CENSUS),
        about(50, "audit", "reproduce/authors.toml"),
        about(30, "audit", "clinic-trees"),
    ),
    "documents": (
        about(25, "documents", "statistics"),
        about(20, "documents", "survival"),
        about(40, "documents", "newton"),
        about(40, "documents", "histograms"),
    ),
    "vertical": (
        about(90, "vertical", "labels"),
        about(60, "vertical", "rows"),
        about(10, "audit", "clinic-vertical"),
    ),
    "nvflare": (
        about(150, "flare", "job", "--out", "{out}/job"),
        about(60, "flare", "filters"),
        about(20, "benchmarks.nvflare"),
    ),
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
