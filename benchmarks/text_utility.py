"""Cost of defences for language models: held-out loss against the share of sentences read.

    python -m benchmarks.text_utility FOLDER [--seeds 2] [--only noise,clip] [--data FOLDER]

A small GPT (2 layers, width 192, the 4,000 most frequent of GPT-2's tokens) learns CoLA's training part, and
is then fine-tuned by FedSGD on the evaluation half of Rotten Tomatoes: two clients, four sentences each per
round, defended at the client; the server uses Adam, so that a defence that only rescales costs little. Before
the first round DAGER reads single batches of four other sentences under the same defence.

DP-SGD's noise multiplier is the one at which a client's updates over all rounds are (8, 1e-5)-DP by
dp-accounting (Renyi; sentences drawn by Poisson sampling, add or remove one); the server sees every update.

One piece per defence and seed, a file in FOLDER; existing pieces are not computed again.
"""

from glasshouse.interfaces import losses_of
import argparse
import json
import os
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from torch import Tensor

from benchmarks.text import DEFENCES, Corpus, Setting, answer_of, defended, gradient
from glasshouse.attacks.base import About
from glasshouse.attacks.text.dager import Dager
from glasshouse.attacks.text.reading import Answer
from glasshouse.metrics.statistics.shares import proportion_interval
from glasshouse.models.text.base import TextModel
from glasshouse.tokens.vocabulary import Vocabulary

WORDS, WIDTH, LENGTH = 4000, 192, 40
CLIENTS, BATCH, ROUNDS = 2, 4, 40
OWN = 1200
"""Number of sentences per client."""
HELD_OUT, READ = 200, 5
"""Number of held-out sentences; number of attacked batches."""
EPSILON, DELTA = 8.0, 1e-5
STEPS, RATE = 150, 1e-3
"""Adam steps before the federation, and their learning rate, which is also the server's."""


def noise_multiplier() -> float:
    """Smallest noise multiplier (to 0.01) for which a client's updates are (EPSILON, DELTA)-DP in total."""

    def spent(multiplier: float) -> float:
        step = dp_event.PoissonSampledDpEvent(BATCH / OWN, dp_event.GaussianDpEvent(multiplier))
        epsilon: float = RdpAccountant().compose(step, ROUNDS).get_epsilon(DELTA)
        return epsilon

    return bisect_left(range(200), -EPSILON, lo=20, key=lambda k: -spent(k / 100)) / 100


class Sentences:
    """Both corpora in one vocabulary; all rare words share one token."""

    def __init__(self, data: Path) -> None:
        self.own = Corpus(data, "rotten_tomatoes").unseen
        public = Corpus(data, "cola_train").sentences
        common = Counter(t for one in public + self.own[: OWN * CLIENTS // 2] for t in one)
        known = [token for token, _ in common.most_common(WORDS - 2)]
        self._ids = {token: 2 + i for i, token in enumerate(known)}
        self.vocabulary = Vocabulary(size=WORDS, pad=0, end=0)
        self.public = self.stack(public)

    def stack(self, sentences: list[list[int]]) -> Tensor:
        """The sentences as a tensor (N, LENGTH)."""
        return self.vocabulary.stack([[self._ids.get(t, 1) for t in one] for one in sentences], length=LENGTH)


def loss_of(model: TextModel, tokens: Tensor) -> float:
    """Mean loss over sentences."""
    with torch.no_grad():
        parts = [
            losses_of(model, Batch(inputs=part, labels=torch.zeros(len(part)).long()))
            for part in tokens.split(50)
        ]
    return float(torch.cat(parts).mean())


def optimizer_of(model: TextModel) -> torch.optim.Optimizer:
    """The optimizer of pre-training and of the server."""
    return torch.optim.Adam(model.parameters(), lr=RATE)


def start(folder: Path, sentences: Sentences) -> TextModel:
    """The initial model of the federation; trained once and stored."""
    torch.manual_seed(0)
    model = build(sentence_model("small_gpt", sentences.vocabulary, length=LENGTH, width=WIDTH, layers=2))
    path = folder / "start.pt"
    if not path.exists():
        optimizer = optimizer_of(model)
        for step in range(STEPS):
            rows = torch.randint(len(sentences.public), (16,), generator=torch.Generator().manual_seed(step))
            follow(model, optimizer, gradient(model, sentences.public[rows], torch.zeros(16).long())[0])
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def follow(model: TextModel, optimizer: torch.optim.Optimizer, update: dict[str, Tensor]) -> None:
    """Take one server step."""
    for name, p in model.named_parameters():
        p.grad = update[name]
    optimizer.step()


def sent(model: TextModel, setting: Setting, tokens: Tensor) -> dict[str, Tensor]:
    """A client's defended gradient; divided by the expected batch size if the size is drawn."""
    if setting.defence != "dp_sgd":
        return defended(gradient(model, tokens, torch.zeros(len(tokens)).long())[0], setting)
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    if len(tokens):
        plain = Setting(table="utility", defence="dp_sgd", strength=0.0)
        mean, _ = answer_of(model, plain, tokens, torch.zeros(len(tokens)).long())
        total = {name: g * len(tokens) / BATCH for name, g in mean.items()}
    scale = setting.strength / BATCH
    return {name: g + scale * torch.randn_like(g) for name, g in total.items()}


def piece(folder: Path, sentences: Sentences, setting: Setting, seed: int) -> dict[str, Any]:
    """Sentences read before the first round, and losses before the first and after the last round."""
    began = time.process_time()
    torch.manual_seed(seed)
    model = start(folder, sentences)
    own = [sentences.stack(sentences.own[OWN * k : OWN * (k + 1)]) for k in range(CLIENTS)]
    held_out = sentences.stack(sentences.own[OWN * CLIENTS :][:HELD_OUT])
    others = sentences.own[OWN * CLIENTS + HELD_OUT :]
    read = 0
    for number in range(READ):
        first = BATCH * (READ * seed + number)
        tokens = sentences.stack(others[first : first + BATCH])
        answer = Answer(
            about=About(rounds=(0,)), model=model, sent=sent(model, setting, tokens), examples=BATCH, steps=1
        )
        claims = Dager().sentences(answer, length=LENGTH, generator=torch.Generator().manual_seed(0))
        words = {tuple(t for t in one.tokens if t) for one in claims[:BATCH]}
        read += sum(row in words for row in sentences.vocabulary.words(tokens))
    before = loss_of(model, held_out)
    optimizer = optimizer_of(model)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(ROUNDS):
        updates = []
        for tokens in own:
            if setting.defence == "dp_sgd":
                rows = (torch.rand(OWN, generator=draws) < BATCH / OWN).nonzero()[:, 0]
            else:
                rows = torch.randperm(OWN, generator=draws)[:BATCH]
            updates.append(sent(model, setting, tokens[rows]))
        follow(model, optimizer, {n: sum(u[n] for u in updates) / CLIENTS for n in updates[0]})
    return {
        "defence": setting.defence,
        "strength": setting.strength,
        "seed": seed,
        "read": read,
        "of": BATCH * READ,
        "before": before,
        "after": loss_of(model, held_out),
        "seconds": time.process_time() - began,
    }


def show(folder: Path) -> None:
    """Print one line per defence."""
    rows: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-s*.json")):
        record = json.loads(path.read_text())
        rows.setdefault((record["defence"], record["strength"]), []).append(record)
    for (defence, strength), records in rows.items():
        hits, total = (sum(one[key] for one in records) for key in ("read", "of"))
        interval = proportion_interval(hits, total)
        losses = ", ".join(f"{one['before']:.2f} -> {one['after']:.2f}" for one in records)
        share = f"{hits}/{total} [{interval.low:.2f}, {interval.high:.2f}]"
        print(f"{defence:8s} {strength:<8g} read {share}  loss {losses}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GLASSHOUSE_DATA", ".")) / "text")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    sentences = Sentences(arguments.data)
    every = {"none": (0.0,), **DEFENCES, "dp_sgd": (noise_multiplier(),)}
    for seed in range(arguments.seeds):
        for defence, strengths in every.items():
            for strength in strengths if not arguments.only or defence in arguments.only.split(",") else ():
                path = arguments.folder / f"{defence}{strength:g}-s{seed}.json"
                if not path.exists():
                    setting = Setting(table="utility", defence=defence, strength=strength)
                    path.write_text(json.dumps(piece(arguments.folder, sentences, setting, seed)))
    show(arguments.folder)


if __name__ == "__main__":
    main()
