"""TimberStrike's own code beside ``joint_cells``, on its authors' partitions and by their score.

``python -m reproduce.timberstrike FOLDER --out OUT [--data stroke/nc_20] [--kind alone] [--trees 2]``, and
``FOLDER --cells`` for rows in their joint cells on the authors' two tables, which takes none of their code.
FOLDER is a copy of github.com/necst/TimberStrike, whose code is imported as it is (it needs pulp, pydotplus,
python-dotenv and matplotlib). OUT keeps a file per client, and goes on where it was. XGBoost here is newer
than theirs, so its base score is handed over as a number; the solver is CBC, theirs without a licence of
Gurobi. Their programs are stopped after ``--limit`` seconds (theirs: 360 to 600); what a tree without a
solution by then says of a row is left out, as in their code.

Every client is the victim once, and boosts first, as the authors' victim does: ``alone`` all its trees one
after the other, ``bagging`` and ``cyclic`` by turns with the others, where we read its first tree alone.
Whoever attacks knows the rows of one other client, as with them. The score is theirs: share of cells (label
included) that are right, a number within 0.319 standard deviations, under the best assignment. Guesses are as
many rows of that other client, and of all other clients, with their labels.
"""

import argparse
import contextlib
import functools
import importlib
import io
import json
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
import xgboost
from scipy.optimize import linear_sum_assignment

from glasshouse.attacks.base import About
from glasshouse.attacks.trees.algebra import Configuration, count_rows, sums_of
from glasshouse.attacks.trees.cells import count_cells
from glasshouse.attacks.trees.joint_cells import background_of, complete
from glasshouse.attacks.trees.programs import Effort
from glasshouse.formats.base import read_document
from glasshouse.metrics.statistics.interval import mean_interval
from glasshouse.modalities.array import Array
from glasshouse.rng import Rng
from glasshouse.wire import Batch
from reproduce.trees import cells_of_plans

ETA, LAMBDA, TOLERANCE, GUESSES, KNOWN = 0.3, 1.0, 0.319, 5, 2


def partition(folder, data):
    """Every client's rows and labels, and what the columns are."""
    place = folder / "data" / data / "data"
    told = json.loads((place / "config" / "config.json").read_text())
    clients = [
        (
            np.load(place / f"client_{i}" / "train" / "x_train.npy"),
            np.load(place / f"client_{i}" / "train" / "y_train.npy").reshape(-1),
        )
        for i in range(len(list(place.glob("client_*"))))
    ]
    return clients, told


def boost(clients, names, order, kind, *, depth, trees):
    """What the victim boosts from nothing, the whole model, and who grew which tree (0: the victim)."""
    how = {"objective": "binary:logistic", "eta": ETA, "max_depth": depth, "lambda": LAMBDA, "nthread": 1}
    how |= {"tree_method": "hist"}
    data = [xgboost.DMatrix(pd.DataFrame(clients[i][0], columns=names), clients[i][1]) for i in order]

    def grown(model, who):
        """The model and one more tree."""
        booster = xgboost.Booster(how, model_file=bytearray(model.save_raw("json")))
        booster.update(data[who], booster.num_boosted_rounds())
        return booster

    first = xgboost.train(how, data[0], trees if kind == "alone" else 1)
    if kind == "alone":
        return first, first, [0] * trees
    everyone = range(len(order))
    if kind == "cyclic":
        model, owners = first, [0]
        for turn in range(1, (trees - 1) * len(order) + 1):
            model, owners = grown(model, turn % len(order)), [*owners, turn % len(order)]
        return first, model, owners
    # Bagging: the trees of a round are grown beside each other, on the model of the round before.
    model = merged(first, [xgboost.train(how, data[who], 1) for who in everyone[1:]])
    for _ in range(trees - 1):
        model = merged(model, [grown(model, who) for who in everyone])
    return first, model, list(everyone) * trees


def merged(model, grown):
    """A model and the last tree of each of others, as a server of Flower's bagging puts them together."""
    whole = json.loads(bytes(model.save_raw("json")))
    inside = whole["learner"]["gradient_booster"]["model"]
    for booster in grown:
        tree = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"][
            -1
        ]
        inside["trees"].append(tree | {"id": len(inside["trees"])})
    count = len(inside["trees"])
    inside["gbtree_model_param"]["num_trees"] = str(count)
    inside["tree_info"], inside["iteration_indptr"] = [0] * count, list(range(count + 1))
    return xgboost.Booster(model_file=bytearray(json.dumps(whole).encode()))


def theirs(peer, grown, told, clients, known, *, limit, random_leaf=False):
    """The authors' rows with labels: their programs, then their middles of boxes."""
    (model, owners), names = grown, told["features"]
    kinds = [c for c in names if c not in told["numerical_features"]]
    columns = np.concatenate([own for own, _ in clients])
    levels = {c: np.unique(columns[:, names.index(c)]) for c in kinds}
    ranges = {c: (columns[:, k].min(), columns[:, k].max()) for k, c in enumerate(names) if c not in kinds}
    base = json.loads(bytes(model.save_raw("json")))["learner"]["learner_model_param"]["base_score"]
    info = peer.xgboost_utils.GenericXGBoostInfo(
        base_score=float(base.strip("[]")), lambda_=LAMBDA, lr=ETA, gamma=0
    )
    single = [model[t : t + 1] for t in range(len(owners))]
    mine = [t for t, who in enumerate(owners) if who == 0]
    solver = peer.DatabaseReconstructor([single[t].trees_to_dataframe() for t in mine], names, info)
    solver.step = functools.partial(solver.step, time_limit=limit)
    if len(mine) == len(owners):
        while len(mine) > 1 and solver.step(baseline=random_leaf):
            pass
    elif len(mine) > 1:
        turns = [{"cid": who, "tree": one.save_raw("json")} for who, one in zip(owners, single, strict=True)]
        params = {"objective": "binary:logistic", "eta": ETA, "lambda": LAMBDA}
        peer.run_attack_bagging_with_interleaving(
            solver, turns, 0, names, params, None, None, names, kinds, levels, ranges, tol=TOLERANCE,
            to_drop=[], cold_start=True, evaluation_step=10**6, baseline=random_leaf,
        )  # fmt: skip
    frame = peer.database_to_final_dataframe(
        solver.database, categorical_features=kinds, categorical_values=levels, numerical_ranges=ranges,
        compromised_df=pd.DataFrame(clients[known][0], columns=names),
    )  # fmt: skip
    return np.column_stack([frame[names].to_numpy(dtype=float), frame["label"]])


def ours(first, known):
    """Rows with labels from the trees that the victim boosted from nothing, completed by known rows."""
    public = Batch(inputs=torch.from_numpy(known[0]).double(), labels=torch.from_numpy(known[1]).long())
    how = Configuration(eta=ETA, reg_lambda=LAMBDA)
    trees = read_document(bytes(first.save_raw("json")))[1]
    solved = count_cells(
        trees, count_rows(trees, how, subject="ours"),
        [sums_of(trees, t, how) for t in range(1, len(trees.trees))], reg_lambda=LAMBDA,
        effort=Effort(certify=0),
        background=background_of(Array(size=(known[0].shape[1],)), public),
    )  # fmt: skip
    got = complete(
        SimpleNamespace(about=About(rounds=(0,), client=0)), solved, public, Rng.root(0).child("rows")
    )
    return np.column_stack([got.inputs.numpy(), got.labels.numpy()])


def drawn(rows, count, draws):
    """So many rows with labels; some twice where there are fewer."""
    picked = draws.choice(len(rows), count, replace=count > len(rows))
    return rows[picked]


def score(peer, claim, true, kinds, *, checked=True):
    """Share of cells that are right: the authors' rule at once, and once in a while by their own code."""
    if len(claim) != len(true):  # their code then compares a drawn part of both
        return 1 - float(np.mean(peer.match_reconstruction(claim, true, kinds, tol=TOLERANCE)[1]))
    near = TOLERANCE * true.std(0)
    near[kinds] = 0
    right = (abs(true[:, None] - claim[None]) <= near).mean(2)
    # Without a categorical column their code divides wrong cells by one more than there are.
    cells = true.shape[1] + (not kinds)
    share = 1 - float((1 - right[linear_sum_assignment(-right)]).mean()) * true.shape[1] / cells
    if checked:
        same = 1 - float(np.mean(peer.match_reconstruction(claim, true, kinds, tol=TOLERANCE)[1]))
        if abs(share - same) > 1e-6:
            raise RuntimeError(f"our form of the score says {share}, the authors' code {same}")
    return share


def one_victim(peer, folder, plan, victim, limit):
    """Every score of one client."""
    data, kind, depth, trees = plan
    clients, told = partition(folder, data)
    names = told["features"]
    kinds = [k for k, c in enumerate(names) if c not in told["numerical_features"]]
    order = [victim, *(i for i in range(len(clients)) if i != victim)]
    whole = [np.column_stack(own) for own in clients]
    known = KNOWN if victim != KNOWN else KNOWN + 1 if len(clients) > KNOWN + 1 else 0
    first, *grown = boost(clients, names, order, kind, depth=depth, trees=trees)
    attacks = {
        "theirs": lambda: theirs(peer, grown, told, clients, known, limit=limit),
        "random leaf": lambda: theirs(peer, grown, told, clients, known, limit=limit, random_leaf=True),
        "ours": lambda: ours(first, clients[known]),
    }
    said, seconds = {}, {}
    for name, attack in attacks.items():
        started = time.time()
        rows = attack()
        seconds[name] = round(time.time() - started, 2)
        said[name] = score(peer, rows, whole[victim], kinds, checked=victim == 0)
    draws, size = np.random.default_rng(victim), len(whole[victim])
    others = np.concatenate([rows for i, rows in enumerate(whole) if i != victim])
    for name, rows in (("rows of that client", whole[known]), ("rows of all others", others)):
        guesses = [drawn(rows, size, draws) for _ in range(GUESSES)]
        said[name] = float(
            np.mean([score(peer, guess, whole[victim], kinds, checked=False) for guess in guesses])
        )
    return {"rows": size, "scores": said, "seconds": seconds}


def show(lines):
    """Means with intervals over clients, and how far ours is from theirs."""
    for name in lines[0]["scores"]:
        got = mean_interval([line["scores"][name] for line in lines], rng=Rng.root(0))
        print(f"  {name}: {got.value:.3f} [{got.low:.3f}, {got.high:.3f}], n = {got.n}")
    for name in ("theirs", "rows of that client", "rows of all others"):
        apart = [line["scores"]["ours"] - line["scores"][name] for line in lines]
        got = mean_interval(apart, rng=Rng.root(0))
        print(f"  ours less {name}: {got.value:+.3f} [{got.low:+.3f}, {got.high:+.3f}]")
    for name in ("theirs", "ours"):
        print(f"  seconds of {name}: {np.mean([line['seconds'][name] for line in lines]):.1f}", flush=True)


def cells(folder):
    """Joint cells of ``reproduce.trees`` on clients drawn from all rows of the authors' two tables."""
    tables = []
    for name, data in (("pima", "diabetes/nc_3"), ("stroke", "stroke/nc_5")):
        clients, told = partition(folder, data)
        rows, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
        size = len(told["features"])
        tables.append((name, rows.astype(np.float32), labels.astype(int), Array(size=(size,))))
    plans = {"pima": [(300, 2, 6), (100, 4, 3), (100, 10, 3)], "stroke": [(640, 2, 6)]}
    cells_of_plans(tables, plans, 5)


def main() -> None:
    """Run what is missing, and print every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the authors' repository")
    parser.add_argument("--cells", action="store_true", help="only our joint cells on their tables")
    parser.add_argument("--out", type=Path, default=Path("timberstrike"))
    parser.add_argument("--data", nargs="+", default=["diabetes/nc_3", "stroke/nc_20"])
    parser.add_argument("--kind", nargs="+", default=["alone"], choices=("alone", "bagging", "cyclic"))
    parser.add_argument("--depth", nargs="+", type=int, default=[3, 6])
    parser.add_argument("--trees", nargs="+", type=int, default=[2, 3], help="of the victim")
    parser.add_argument("--victims", type=int, help="clients that are attacked; default: all")
    parser.add_argument("--limit", type=float, default=20, help="seconds of each of their programs")
    arguments = parser.parse_args()
    if arguments.cells:
        cells(arguments.folder)
        return
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(arguments.folder.resolve()))
    pulp, peer = (importlib.import_module(name) for name in ("pulp", "xgboost_reconstruction"))
    # Their code reads both after every program; CBC, unlike Gurobi, has neither.
    pulp.PULP_CBC_CMD.solveTime, pulp.PULP_CBC_CMD.close = None, lambda _: None
    arguments.out.mkdir(parents=True, exist_ok=True)
    plans = [
        (data, kind, depth, trees)
        for data in arguments.data for kind in arguments.kind
        for depth in arguments.depth for trees in arguments.trees
    ]  # fmt: skip
    for plan in plans:
        lines = []
        for victim in range(len(partition(arguments.folder, plan[0])[0]))[: arguments.victims]:
            kept = arguments.out / f"{'-'.join(map(str, plan)).replace('/', '-')}-{victim}.json"
            if not kept.exists():
                with contextlib.redirect_stdout(io.StringIO()):
                    line = one_victim(peer, arguments.folder, plan, victim, arguments.limit)
                kept.write_text(json.dumps(line))
            lines.append(json.loads(kept.read_text()))
        print(*plan, f"{np.mean([line['rows'] for line in lines]):.0f} rows each")
        show(lines)


if __name__ == "__main__":
    main()
