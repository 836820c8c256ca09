"""Tables of docs/results/trees.md and tables.md: counts, cuts, joint cells, rows, survival curves.

Run: ``python -m reproduce.trees counts|cells|rows|curves|people [--data adult] [--seeds 2]``.
The table is Adult, from GLASSHOUSE_DATA (in the pages), or the made-up clinic.
"""

import argparse
import math
import time
import warnings
from collections import Counter

import lightgbm
import numpy as np
import torch
import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)

from glasshouse.attacks.base import tensors_of
from glasshouse.attacks.rows.double_span import DoubleSpan
from glasshouse.attacks.statistics.kaplan_meier import count_chains, other_site
from glasshouse.attacks.trees.algebra import Configuration, count_rows, sums_of
from glasshouse.attacks.trees.cell_membership import log_odds
from glasshouse.attacks.trees.cells import count_cells
from glasshouse.attacks.trees.joint_cells import background_of
from glasshouse.attacks.trees.programs import Effort
from glasshouse.data.sources import load
from glasshouse.examples import join
from glasshouse.federation.protocols.documents.base import Present
from glasshouse.federation.protocols.documents.survival import SurvivalProtocol
from glasshouse.formats.base import read_document
from glasshouse.formats.records import LEAF, Survival
from glasshouse.formats.sklearn_trees import document_of
from glasshouse.interfaces import mean_loss
from glasshouse.metrics.membership import auc
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.modalities.array import Array
from glasshouse.modalities.row import Row
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update

warnings.filterwarnings("ignore")
SHRUNK = Configuration(eta=0.1, reg_lambda=0.0)
SECRETS = {
    "adult": ("occupation", "marital-status", "workclass"),
    "clinic": ("diagnosis", "smokes", "region"),
}
"""Columns of each table that are guessed."""


def sources(data):
    """(name, rows, labels, what rows look like)."""
    rows, labels = load_breast_cancer(return_X_y=True)
    source = load(data)
    own, name = source.splits["train"].batch(), data
    return [
        ("breast", rows.astype(np.float32), labels, Array(size=(30,))),
        (name, own.inputs.numpy(), own.labels.numpy(), source.inputs),
    ]


def documents(rows, labels, depth):
    """Models of every library on the same rows, with the settings that are public."""
    for base in (None, 0.5):
        how = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1, "tree_method": "hist"}
        how |= {"base_score": base} if base else {}
        booster = xgboost.train(how, xgboost.DMatrix(rows, labels), 2)
        yield f"xgboost {base or 'own'}", bytes(booster.save_raw("json")), Configuration()
    how = {"objective": "binary", "verbose": -1, "num_threads": 1, "max_depth": depth, "min_data_in_leaf": 5}
    yield (
        "lightgbm",
        lightgbm.train(how, lightgbm.Dataset(rows, labels), 2).model_to_string().encode(),
        SHRUNK,
    )
    boosted = GradientBoostingClassifier(n_estimators=2, max_depth=depth, random_state=0).fit(rows, labels)
    yield "boosting", document_of(boosted), SHRUNK
    binned = HistGradientBoostingClassifier(max_iter=2, max_depth=depth, early_stopping=False)
    yield "histograms", document_of(binned.fit(rows, labels)), SHRUNK
    forest = RandomForestClassifier(2, max_depth=depth, bootstrap=False, random_state=0).fit(rows, labels)
    yield "forest", document_of(forest), SHRUNK


def counts(data, seeds):
    """Leaf algebra and cuts: clients whose counts are all exact, and cuts that are values."""
    exact, clients, cuts, values = Counter(), Counter(), 0, 0
    for name, rows, labels, _ in sources(data):
        for n in (100, 400):
            for depth in (3, 6, 8):
                for seed in range(seeds):
                    picked = np.random.default_rng(seed).permutation(len(rows))[:n]
                    own, their = rows[picked], labels[picked]
                    for kind, document, how in documents(own, their, depth):
                        trees = read_document(document)[1]
                        found = count_rows(trees, how, subject=name)
                        at = trees.reach(0, own)
                        true = [[((at == k) & (their == y)).sum() for y in (0, 1)] for k in found.sums.leaves]
                        exact[name, kind] += bool((found.counts == np.array(true)).all())
                        clients[name, kind] += 1
                        if not trees.exact_cuts:
                            continue
                        for tree in trees.trees:
                            for node in np.flatnonzero(tree.feature != LEAF):
                                cuts += 1
                                column = own[:, tree.feature[node]]
                                values += np.isclose(column, tree.threshold[node], rtol=1e-6, atol=0).any()
    for key in clients:
        print(*key, f"{exact[key]}/{clients[key]}", share_interval(np.ones(clients[key]) * 1.0).low)
    print("cuts that are values", f"{values}/{cuts}")


def cells(data, seeds):
    """Joint cells by sizes: rows in their cell, the null of public rows, certain counts that are right."""
    plans = {
        "breast": [
            (100, 2, 6),
            (100, 3, 3),
            (100, 5, 3),
            (100, 10, 3),
            (100, 20, 3),
            (100, 5, 4, "lightgbm"),
        ],
        "adult": [(200, 2, 6), (500, 2, 6), (500, 3, 6), (500, 2, 6, "lightgbm")],
    }
    plans["clinic"] = plans["adult"]
    cells_of_plans(sources(data), plans, seeds)


def cells_of_plans(tables, plans, seeds):
    """One line per table and plan (rows, trees, depth), over so many clients."""
    for name, rows, labels, inputs in tables:
        for n, count, depth, *library in plans[name]:
            hits, nulls, right, certain, seconds, fitting = [], [], 0, 0, 0.0, 0
            for seed in range(seeds):
                picked = np.random.default_rng(seed).permutation(len(rows))
                own, their = rows[picked[:n]], labels[picked[:n]]
                public, said = rows[picked[n : 2 * n]], labels[picked[n : 2 * n]]
                document, how = boosted(own, their, count, depth, *library)
                trees = read_document(document)[1]
                first = count_rows(trees, how, subject=name)
                later = [sums_of(trees, t, how) for t in range(1, count)]
                started = time.process_time()
                got = count_cells(
                    trees, first, later, reg_lambda=how.reg_lambda, effort=Effort(),
                    background=background_of(
                        inputs, Batch(inputs=torch.from_numpy(public), labels=torch.from_numpy(said))
                    ),
                )  # fmt: skip
                seconds += time.process_time() - started
                true, guess = (place(trees, got, *pair) for pair in ((own, their), (public, said)))
                hits.append(np.minimum(true, got.counts).sum() / n)
                nulls.append(np.minimum(true, guess).sum() / n)
                right += int((true == got.counts)[got.certain].sum())
                certain += int(got.certain.sum())
                fitting += got.residual <= 1
            print(
                name, n, *library, f"{count} trees", f"depth {depth}", "right", np.round(hits, 3),
                "null", np.round(nulls, 3), f"programs that ended {fitting}/{seeds},",
                f"certain counts right {right}/{certain}, {seconds / seeds:.1f} s", flush=True,
            )  # fmt: skip


def boosted(rows, labels, count, depth, library="xgboost"):
    """The document of so many trees on these rows, and its settings."""
    if library == "lightgbm":
        how = {"objective": "binary", "verbose": -1, "num_threads": 1, "max_depth": depth}
        model = lightgbm.train(how | {"min_data_in_leaf": 5}, lightgbm.Dataset(rows, labels), count)
        return model.model_to_string().encode(), SHRUNK
    how = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1, "tree_method": "hist"}
    booster = xgboost.train(how, xgboost.DMatrix(rows, labels), count)
    return bytes(booster.save_raw("json")), Configuration()


def people(data, seeds):
    """Whether a known row is a client's, and its unknown cell, from joint cells: beside a public model."""
    source = load(data)
    own, size = source.splits["train"].batch(), 200 if data == "adult" else 120
    secret = SECRETS[data]
    areas, right = [], {name: [] for name in secret}
    for seed in range(seeds):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(own)))
        members, strangers, public = (
            own.pick(order[a * size : a * size + b]) for a, b in ((0, size), (1, size), (2, 1000))
        )
        solved = cells_of(source, members, public)
        odds = [
            log_odds(solved, side.inputs.double().numpy(), side.labels.numpy(), public)
            for side in (members, strangers)
        ]
        areas.append(auc(np.concatenate(odds), np.arange(2 * size) < size).value)
        for name in secret:
            right[name].append(guessed_cells(source.inputs, name, solved, members, public))
    print(source.name.split("/")[-1], size, "rows; members against strangers, AUC", np.round(areas, 2))
    for name, each in right.items():
        print(name, "right with cells", *(f"{a:.3f}" for a, _ in each), "public model alone",
              *(f"{b:.3f}" for _, b in each), flush=True)  # fmt: skip


def cells_of(source, members: Batch, public: Batch):
    """The cells of two trees of depth 6 that a client boosts from nothing."""
    how = {"objective": "binary:logistic", "max_depth": 6, "nthread": 1, "tree_method": "hist"}
    booster = xgboost.train(how, xgboost.DMatrix(members.inputs.numpy(), members.labels.numpy()), 2)
    trees = read_document(bytes(booster.save_raw("json")))[1]
    return count_cells(
        trees, count_rows(trees, Configuration(), subject="people"), [sums_of(trees, 1, Configuration())],
        reg_lambda=1.0, effort=Effort(certify=0),
        background=background_of(source.inputs, public),
    )  # fmt: skip


def guessed_cells(inputs, name, solved, members: Batch, public: Batch) -> tuple[float, float]:
    """Share of a column's cells that are guessed right, by the public model with the cells and without."""
    column, place = next((c, p) for c, p in inputs.places() if c.name == name)
    others = np.ones(inputs.shape[0], dtype=bool)
    others[place] = False
    known, wanted = (column.decode(b.inputs[:, place]).nan_to_num(nan=-1).numpy() for b in (public, members))
    seen = [np.column_stack([b.inputs.numpy()[:, others], b.labels.numpy()]) for b in (public, members)]
    model = HistGradientBoostingClassifier(max_iter=50, random_state=0).fit(seen[0], known)
    alone = np.log(np.maximum(model.predict_proba(seen[1]), 1e-9))
    # What the cells say of each level, were it the row's: the same rows with that level put in.
    together = alone.copy()
    for i, level in enumerate(model.classes_):
        rows = members.inputs.double().numpy().copy()
        values = torch.full((len(rows),), float("nan") if level < 0 else float(level)).double()
        rows[:, place] = column.encode(values).numpy()
        together[:, i] += log_odds(solved, rows, members.labels.numpy(), public)
    picks = [model.classes_[table.argmax(1)] for table in (together, alone)]
    return float((picks[0] == wanted).mean()), float((picks[1] == wanted).mean())


def place(trees, got, rows, labels):
    """Rows per cell and label, (C, 2)."""
    paths = [np.searchsorted(trees.boxes(t)[0], trees.reach(t, rows)) for t in range(len(trees.trees))]
    there = Counter(zip(map(tuple, np.stack(paths, 1).tolist()), labels.tolist(), strict=True))
    return np.array([[there.get((tuple(p), y), 0) for y in (0, 1)] for p in got.cells.paths.tolist()])


def rows(data, seeds):
    """Double span by batch size: rows written down and certified, and those that are wrong."""
    source = load(data)
    own = source.splits["train"].batch()
    for size in (1, 2, 4, 8, 16, 24, 32, 48):
        right = claimed = 0
        started = time.process_time()
        for seed in range(seeds):
            order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
            batch = own.pick(order[:size])
            _, proved = DoubleSpan().run(view_of(source, batch, seed), rng=Rng.root(0))
            got = tensors_of(proved)["inputs"]
            claimed += len(got)
            right += (
                int((source.inputs.distance(got, batch.inputs).min(1).values == 0).sum()) if len(got) else 0
            )
        print(
            source.name.split("/")[-1], "batch", size, f"right {right}/{seeds * size}",
            f"wrong {claimed - right}", f"{(time.process_time() - started) / seeds:.2f} s", flush=True,
        )  # fmt: skip


def view_of(source, batch: Batch, seed: int) -> View:
    """What the server sees of one gradient of a network 256-64."""
    architecture = Architecture(
        name="mlp", inputs=source.inputs, task=source.task, arguments={"hidden": "256,64"}
    )
    model = build(architecture, rng=Rng.root(seed)).eval()
    parameters = dict(model.named_parameters())
    gradient = torch.autograd.grad(mean_loss(model, batch), list(parameters.values()))
    sent = dict(zip(parameters, gradient, strict=True))
    update = Update(round=0, client=0, kind="gradient", tensors=sent, examples=len(batch))
    terms = Terms(
        protocol="fedsgd",
        architecture=architecture,
        sends="gradient",
        clients=1,
        cohort=1,
        batch_size=len(batch),
    )
    broadcast = Broadcast(round=0, architecture=architecture, tensors=state(model))
    seen = RoundView(round=0, broadcast=broadcast, updates={0: update})
    return View(terms=terms, threat=Threat(), rounds=(seen,))


def curves(_, seeds):
    """Patients read from raw times, daily tables and sums of two sites, and data sets that curves allow."""
    source = load("cohort")
    people, rows = source.splits["train"].batch(), source.inputs
    assert isinstance(rows, Row)  # of the cohort
    place = [c.name for c in rows.columns].index("time")
    for n in (50, 100, 200):
        exact = Counter()
        for seed in range(seeds):
            order = torch.from_numpy(np.random.default_rng(seed).permutation(len(people)))
            own, other = people.pick(order[:n]), people.pick(order[n : 2 * n])
            true = {side: table_of(rows.decode(batch.inputs)[:, place].numpy(), batch.labels.numpy())
                    for side, batch in (("own", own), ("other", other))}  # fmt: skip
            for shape in ("raw", "table"):
                exact[shape] += same_patients(sent(source, own, shape), true["own"])
            both = sent(source, join([own, other]), "table")
            exact["two sites"] += same_patients(other_site(both, true["own"]), true["other"])
        print(n, "patients, exact of", seeds, dict(exact), flush=True)
    for n in (20, 50, 100, 200):
        for digits in (None, 4, 3, 2):
            sizes, whole = [], 0
            started = time.process_time()
            for seed in range(seeds):
                draws = np.random.default_rng(seed)
                lives, leaves = np.ceil(365 * draws.weibull(1.2, n)), np.ceil(365 * draws.uniform(0.3, 2, n))
                stated = curve_of(np.minimum(lives, leaves), lives <= leaves, digits)
                found = count_chains(stated)
                sizes.append(math.log10(found.count))
                whole += found.exact
            print(
                n, "patients", digits or "full", f"digits: 10 to the {np.mean(sizes):.1f}",
                f"[{min(sizes):.1f}, {max(sizes):.1f}], exact {whole}/{seeds},",
                f"{(time.process_time() - started) / seeds:.2f} s", flush=True,
            )  # fmt: skip


def sent(source, batch: Batch, shape: str) -> Survival:
    """What the server reads of a site with these rows."""
    site = Present(client=0, index=torch.arange(len(batch)), batch=batch)
    document = SurvivalProtocol(shape=shape).report(source.inputs, site, 0, rng=Rng.root(0))
    read = read_document(document)[1]
    assert isinstance(read, Survival)
    return read


def table_of(times, died) -> Survival:
    """Deaths and losses at each time."""
    each, at = np.unique(times, return_inverse=True)
    events = np.bincount(at, died, minlength=len(each)).astype(np.int64)
    return Survival(times=each, patients=len(times), events=events, censored=np.bincount(at) - events)


def same_patients(read: Survival, true: Survival) -> bool:
    """Whether everybody's time and outcome are the same."""
    return read.patients == true.patients and all(
        np.array_equal(getattr(read, name), getattr(true, name)) for name in ("times", "events", "censored")
    )


def curve_of(times, died, digits) -> Survival:
    """The curve that is printed."""
    table = table_of(times, died)
    there = len(times) - np.concatenate([[0], np.cumsum(table.events + table.censored)[:-1]])
    curve = np.cumprod(1 - table.events / there)
    return Survival(
        times=table.times, patients=len(times), digits=digits,
        curve=curve if digits is None else np.round(curve, digits),
    )  # fmt: skip


PARTS = {
    "counts": (counts, 10),
    "cells": (cells, 5),
    "rows": (rows, 5),
    "curves": (curves, 20),
    "people": (people, 5),
}
"""Tables, and the clients, batches or cohorts of each row on the pages."""


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", default="clinic", choices=("clinic", "adult"), help="the table")
    parser.add_argument(
        "--seeds", type=int, help="clients, batches or cohorts of each row; default: the page's"
    )
    arguments = parser.parse_args()
    table_of, seeds = PARTS[arguments.part]
    table_of(arguments.data, arguments.seeds or seeds)


if __name__ == "__main__":
    main()
