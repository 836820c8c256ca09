"""Pieces of the pages that have many: PROLIN, Maui, PLI. ``benchmarks.pages`` has the other pages."""

from collections.abc import Iterable

from benchmarks.pieces import Piece, about, changed


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


SHADOWS = "attacks.*.method={pairs=200,pool=600}"
"""L-BFGS instead of the discriminant."""
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
DETECTORS = (
    ("published", 1040, 'attacks.*.method={pairs=5000,pool=0,detector="sgd"}'),
    ("discriminant", 34, ""),
    ("lbfgs400", 35, "attacks.*.method={pairs=400}"),
)
"""Name, CPU seconds of 50 rounds, and change."""
PROLIN: tuple[Piece, ...] = (
    *rounds_of("prolin-membership", 0, range(100, 107), 290, name="first"),
    *rounds_of("prolin-membership", 0, range(107, 110), 290, name="second"),
    *rounds_of("prolin-membership", 1, range(100, 106), 290, name="first"),
    *rounds_of("prolin-membership", 1, range(106, 110), 290, name="second"),
    *rounds_of("prolin-estimator", 0, range(100, 103), 370),
    *rounds_of("prolin-estimator", 0, range(100, 103), 770, *AUTHORS, name="authors"),
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
    *(
        piece
        for name, cost, change in DETECTORS
        for piece in rounds_of(
            *("prolin-membership", 1, range(1), cost, "federation.rounds=50", *filter(None, (change,))),
            at="50",
            name=name,
        )
    ),
    about(65, "prolin_speed", "default", "--published"),
    about(10, "prolin_speed", "tau"),
    about(15, "prolin_speed", "round", "--pairs", "200"),
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
    "features": 40, "heads": 300, "searched": 800, "inversion": 160, "batches": 60, "guard": 40,
    "crafted": 20, "speed": 210, "outside": 40,
}  # fmt: skip
"""Parts of benchmarks.maui, and their CPU seconds."""
LONGER = {(5, 20): 1200, (10, 35): 3300, (5, 35): 30}
"""Epochs, robust and natural, of ResNet-18; what was trained before is not trained again."""
MAUI: tuple[Piece, ...] = (
    about(2800, "audit", "maui"),
    *SENT,
    *(about(840, "audit", "maui", *changed(*ONE_MODEL, *where)) for where in OUTSIDE),
    *(about(cost, "maui", what) for what, cost in PARTS.items()),
    about(20, "maui", "preimages", "--pairs", "24"),
    about(90, "maui", "dp", "--images", "32"),
    about(60, "maui", "units"),
    Piece(("maui", "features", "--set", trained(8, 6)), 614),
    about(1050, "maui", "features", "architecture", "preimages", *SMALL, *resnet(16, 5, 4)),
    about(1550, "maui", "preimages", *resnet(16, 5, 15, moved=False)),
    *(about(cost, "maui", "preimages", *SMALL, *resnet(16, *epochs)) for epochs, cost in LONGER.items()),
    about(100, "maui", "preimages", *resnet(16, 5, 35)),
    about(1550, "maui", "architecture", "features", "--images", "32", *resnet(32, 2, 1)),
    Piece(("maui_pictures", *resnet(32, 2, 1)), 300),
    about(700, "maui", "features", "architecture", "preimages", *SMALL, *SHUFFLENET),
    about(900, "maui", "architecture", *SHUFFLENET_ON_ALL),
    about(150, "maui_rounds"),
)  # fmt: skip
BLUR = ('data.domains.shifts=[{name="box_blur"}]',)
CLIENTS = 'axes."federation.clients"='
TBI_ALONE = 'attacks=[{name="tbi",training={width=64,epochs=1,batch_size=16,learning_rate=1e-3}}]'
PAPER_WIDTH = (
    *('axes."federation.protocol"=["fedmd"]', CLIENTS + "[2]", "data.domains.same_photos=false"),
    *("data.domains.heldout=0.0", *BLUR, "audit.seeds=[66]", 'audit.contrast=""'),
    'attacks=[{name="pli", processes=2, training={bfloat16=true}}]',
)
LFW = ("--bfloat16", "--out", "{out}/lfw", "--only")
LFW_TEN = ("--bfloat16", "--out", "{out}/lfw10", "--only")
TEN = ("10", *changed("data.domains.identities=200", "data.domains.targets=60"))
PROTOCOLS = ("fedmd", "fedgems", "dsfl")
RIDGE = 'name="pli", average=true, inverter="ridge", choice="predictions"'
UPLOADS = f'attacks=[{{{RIDGE}}}, {{{RIDGE}, label="without uploads", reads="none"}}]'
BY_RIDGE = ("--bfloat16", "--set", UPLOADS, "--out", "{out}/ridge", "--only")
FEDMD_ALONE = ('axes."federation.protocol"=["fedmd"]', CLIENTS + "[1]")
FEDGEMS_TWO = ('axes."federation.protocol"=["fedgems"]', CLIENTS + "[2]")
TBI = (CLIENTS + "[10]", TBI_ALONE, 'audit.contrast=""', "audit.controls=false")
PRIVATE = (*TBI[1:], "federation.options={public_epochs=0}", "audit.seeds=[0]")
"""What clients learn from private data alone; one attack, because an audit has one."""
PARTIES = Piece(("pli_parties", "{before}"), 3)
FACESCRUB = (*BLUR, "data.domains.same_photos=false")
PLI: tuple[Piece, ...] = (
    about(5000, "audit", "pli"),
    PARTIES,
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
    about(260, "audit", "pli", *changed(*FEDGEMS_TWO, *BLUR, "data.domains.heldout=0.5")),
    PARTIES,
    about(60, "audit", "pli", *changed(*FEDGEMS_TWO, *BLUR, "data.domains.heldout=0.5", *PRIVATE)),
    PARTIES,
    Piece(("audit", "pli", *changed(*PAPER_WIDTH)), 110),
    Piece(("pli_lfw", "run", *LFW, "fedmd", "1"), 310),
    Piece(("pli_lfw", "run", *LFW, "fedgems", "1"), 350),
    Piece(("pli_lfw", "run", *LFW, "dsfl", "1"), 200),
    *(Piece(("pli_lfw", "table", *LFW, name, "1"), 190) for name in PROTOCOLS),
    *(Piece(("pli_lfw", "run", *LFW_TEN, name, *TEN), 690) for name in PROTOCOLS),
    *(Piece(("pli_lfw", "table", *LFW_TEN, name, *TEN), 30) for name in PROTOCOLS),
    *(
        Piece(("pli_lfw", mode, *BY_RIDGE, name, *clients), cost)
        for name in PROTOCOLS
        for mode, clients, cost in (
            ("run", TEN, 330),
            ("table", TEN, 10),
            ("run", ("1",), 380),
            ("table", ("1",), 60),
        )
    ),
    Piece(("pli_speed",), 15),
)  # fmt: skip
