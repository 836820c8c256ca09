"""TabLeak's own code beside our ``tableak`` and ``double_span``: same gradients, by its authors' score.

``python -m reproduce.tableak FOLDER --out OUT [--batches 8 32] [--seeds 10] [--first 0] [--members 3]
[--steps 600] [--searches theirs best]``.
FOLDER is a copy of github.com/eth-sri/tableak with its Adult table; its code is imported as it is, but for
one copy that today's torch wants. OUT keeps a file per gradient, and goes on where it was. The network is
theirs (100-100-2, new weights), and so are rows (standardised), gradient, labels (both know them) and score:
cells right under the best assignment, a number within 0.319 standard deviations. Their published figures
take 30 members of 1,500 steps.

Our attacks read rows scaled to their ranges, so the same network and the same gradient are written in those
units: x' = a x + b moves a and b into the first layer, and the gradient follows from theirs alone. What
``double_span`` does not prove is filled up with rows of their test split, which are also the guesses.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from glasshouse.attacks.base import tensors_of
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.rows.double_span import DoubleSpan
from glasshouse.attacks.rows.tableak import TabLeak
from glasshouse.metrics.statistics.interval import mean_interval
from glasshouse.modalities.row import Column, Row
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.tasks.classification import Classification
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Terms, Update

WIDTHS, GUESSES = (100, 100, 2), 20
SEARCHES = {
    "theirs": "theirs, pooled",
    "best": "ours, best member",
    "pooled": "ours, pooled",
    "span": "double_span",
}
"""What is run on a gradient, and how it is called in the files."""


def row_of(data):
    """Their columns, with their ranges, as ours."""
    columns = []
    for name, levels in data.train_features.items():
        if levels is None:
            low, high = map(float, data.continuous_bounds[name])
            columns.append(Column(name=name, kind="integer", low=low, high=high))
        else:
            columns.append(Column(name=name, kind="categorical", levels=tuple(levels)))
    return Row(columns=tuple(columns))


def units(data, table):
    """Ends and widths of their raw numbers, (F,) each, so that raw = low + width · entry."""
    low, width = torch.zeros(data.num_features).double(), torch.ones(data.num_features).double()
    for column, place in table.places():
        if column.numeric:
            low[place], width[place] = column.low, column.high - column.low
    return low, width


def view_of(data, table, net, gradient, labels):
    """Network and gradient in our units, as a server would have seen them."""
    low, width = units(data, table)
    mean, spread = data.mean.double(), data.std.double()
    scale, shift = width / spread, (low - mean) / spread
    own = [p.detach().double() for p in net.parameters()]
    sent = [g.double() for g in gradient]
    own[1], own[0] = own[1] + own[0] @ shift, own[0] * scale
    sent[0] = (sent[0] - torch.outer(sent[1], shift)) / scale
    architecture = Architecture(
        name="mlp", inputs=table, task=Classification(classes=2),
        arguments={"hidden": ",".join(map(str, WIDTHS[:-1])), "mean": 0.0, "std": 1.0},
    )  # fmt: skip
    names = list(state(build(architecture, rng=Rng.root(0))))
    terms = Terms(
        protocol="fedsgd", architecture=architecture, sends="gradient", clients=1, cohort=1,
        batch_size=len(labels),
    )  # fmt: skip
    tensors = dict(zip(names, (p.float() for p in own), strict=True))
    update = Update(
        round=0, client=0, kind="gradient", examples=len(labels),
        tensors=dict(zip(names, (g.float() for g in sent), strict=True)),
    )  # fmt: skip
    broadcast = Broadcast(round=0, architecture=architecture, tensors=tensors)
    seen = RoundView(round=0, broadcast=broadcast, updates={0: update})
    return View(terms=terms, threat=Threat(), rounds=(seen,), grants=Grants(labels={(0, 0): labels}))


def _compare(view, table, data, rows, labels):
    """Stop where network and gradient in our units are not theirs."""
    low, width = units(data, table)
    entries = ((rows.double() * data.std.double() + data.mean.double() - low) / width).float()
    client = replica(view, subject="the comparison")
    parameters = [p.requires_grad_() for p in client.model.parameters()]
    again = torch.autograd.grad(nn.functional.cross_entropy(client.model(entries), labels), parameters)
    for mine, sent in zip(again, view.rounds[0].updates[0].tensors.values(), strict=True):
        if (mine - sent).norm() > 1e-3 * sent.norm():
            raise RuntimeError("the gradient in our units is not theirs")


def mixed(data, table, rows):
    """Our rows as their table of words and numbers."""
    low, width = units(data, table)
    return data.decode_batch((low + width * rows.double()).float(), standardized=False)


def one_gradient(peer, data, size, seed, *, members, steps, wanted):
    """Scores of the ``wanted`` searches on one batch, and of guesses."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    picked = torch.from_numpy(random.integers(len(data.get_Xtrain()), size=size))
    rows, labels = data.get_Xtrain()[picked], data.get_ytrain()[picked]
    net, criterion = peer.models.FullyConnected(data.num_features, list(WIDTHS)), nn.CrossEntropyLoss()
    gradient = [g.detach() for g in torch.autograd.grad(criterion(net(rows), labels), net.parameters())]
    table, right = row_of(data), data.decode_batch(rows, standardized=True)
    public = data.get_Xtest()
    guesses = [
        data.decode_batch(public[torch.from_numpy(random.integers(len(public), size=size))])
        for _ in range(GUESSES)
    ]
    view, seconds = view_of(data, table, net, gradient, labels), {}
    _compare(view, table, data, rows, labels)

    def theirs():
        found = peer.attacks.invert_grad(
            net=net, training_criterion=criterion, true_grad=gradient, true_label=labels, true_data=rows,
            reconstruction_loss="cosine_sim", dataset=data, max_iterations=steps, post_selection=members,
            softmax_trick=True, sigmoid_trick=True, pooling="median+softmax",
        )  # fmt: skip
        return data.decode_batch(peer.utils.post_process_continuous(found.detach(), data), standardized=True)

    def ours(*, pooled):
        attack = TabLeak(members=members, iterations=steps, pooled=pooled)
        (claim,) = attack.run(view, rng=Rng.root(seed))
        return mixed(data, table, tensors_of(claim)["inputs"])

    def span():
        claim, proved = DoubleSpan().run(view, rng=Rng.root(seed))
        found[:] = [len(tensors_of(proved)["inputs"])]
        told = tensors_of(claim)["inputs"]
        filled = guesses[0][len(told) :]
        return np.concatenate([mixed(data, table, told), filled]) if len(told) else filled

    found = [0]
    claims = {}
    attacks = {
        "theirs": theirs,
        "best": lambda: ours(pooled=False),
        "pooled": lambda: ours(pooled=True),
        "span": span,
    }
    for key in wanted:
        attack, name = attacks[key], SEARCHES[key]
        started = time.process_time()
        claims[name] = attack()
        seconds[name] = time.process_time() - started
    tolerance = data.create_tolerance_map()

    def score(claim):
        _, wrong, _, _ = peer.utils.match_reconstruction_ground_truth(right, claim, tolerance)
        return 1 - float(np.mean(wrong)), float(np.mean(np.asarray(wrong) < 1e-9))

    scores = {name: score(claim) for name, claim in claims.items()}
    scores["random public rows"] = tuple(np.mean([score(guess) for guess in guesses], 0).tolist())
    return {"scores": scores, "seconds": seconds, "proved": found[0]}


def show(size, lines):
    """Means with intervals over gradients."""
    print(f"batch {size}, {len(lines)} gradients, {sum(line['proved'] for line in lines)} rows proved")
    null = "random public rows"
    for name in dict.fromkeys(name for line in lines for name in line["scores"]):
        some = [line for line in lines if name in line["scores"]]
        cells, whole = zip(*(line["scores"][name] for line in some), strict=True)
        got = mean_interval(cells, rng=Rng.root(0))
        gain = mean_interval([a - line["scores"][null][0] for a, line in zip(cells, some, strict=True)],
                             rng=Rng.root(0))  # fmt: skip
        print(
            f"  {name} ({len(some)}): cells {got.value:.3f} [{got.low:.3f}, {got.high:.3f}], above guessing",
            f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}], rows whole {np.mean(whole):.3f},",
            f"{np.mean([line['seconds'].get(name, 0) for line in some]):.1f} s", flush=True,
        )  # fmt: skip
    ours, theirs = "ours, best member", "theirs, pooled"
    both = [line["scores"] for line in lines if {ours, theirs} <= line["scores"].keys()]
    if len(both) > 1:
        got = mean_interval([scores[ours][0] - scores[theirs][0] for scores in both], rng=Rng.root(0))
        print(f"  ours, best member, less theirs ({len(both)}): {got.value:+.3f}",
              f"[{got.low:+.3f}, {got.high:+.3f}]", flush=True)  # fmt: skip


def main() -> None:
    """Run what is missing, and print every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the authors' repository")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 16, 32])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="seed of the first gradient")
    parser.add_argument("--members", type=int, default=3, help="of both searches; 0: neither")
    parser.add_argument("--steps", type=int, default=600, help="of each member")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # Their code reads its table and imports its packages from the current folder.
    os.chdir(arguments.folder)
    sys.path.insert(0, str(Path.cwd()))
    peer = argparse.Namespace(
        **{name: importlib.import_module(name) for name in ("attacks", "datasets", "models", "utils")}
    )
    # Today's torch refuses to write into a leaf, as their last line does: it gets a copy.
    inside = vars(importlib.import_module("attacks.gradient_inversion_attack"))
    bound = inside["continuous_sigmoid_bound"]
    inside["continuous_sigmoid_bound"] = lambda x, **more: bound(x * 1.0, **more)
    data = peer.datasets.ADULT()
    data.standardize()
    for size in arguments.batches:
        lines = []
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            kept = out / f"{size}-{arguments.members}x{arguments.steps}-{seed}.json"
            line = {"scores": {}, "seconds": {}, "proved": 0}
            if kept.exists():
                line = json.loads(kept.read_text())
            for search in arguments.searches:
                if SEARCHES[search] in line["scores"] or (search != "span" and not arguments.members):
                    continue
                with contextlib.redirect_stdout(io.StringIO()):
                    more = one_gradient(
                        peer, data, size, seed, members=arguments.members, steps=arguments.steps,
                        wanted=[search],
                    )  # fmt: skip
                line = {
                    "scores": line["scores"] | more["scores"],
                    "seconds": line["seconds"] | more["seconds"],
                    "proved": max(line["proved"], more["proved"]),
                }
                kept.write_text(json.dumps(line))
            lines.append(line)
        show(size, lines)


if __name__ == "__main__":
    main()
