"""Leakage from gradients of language models: DAGER over models, batches, protocols and defences.

    python -m reproduce.text FOLDER [--tables decoder,llama] [--only bert] [--device cuda] [--batches 20]

Every batch is a piece, a file in FOLDER; existing pieces are not computed again.
``reproduce.text_tables FOLDER`` prints them. Models have the full architectures with random weights; tokens
are those of GPT-2. Batches are drawn from the second half of Rotten Tomatoes and from CoLA's development
parts; the rest was used for tuning.

Needs: the extra ``text``; ``--data`` (or ``$GLASSHOUSE_DATA/text``) with ``gpt2/``, ``rotten_tomatoes/``
and ``cola/``.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor

from glasshouse.attacks.base import About
from glasshouse.attacks.text.dager import Dager
from glasshouse.attacks.text.embedding_rows import EmbeddingRows
from glasshouse.attacks.text.reading import Answer
from glasshouse.models.text.base import TextModel
from glasshouse.models.text.bert import bert
from glasshouse.models.text.gpt2 import gpt2
from glasshouse.models.text.llama import llama
from glasshouse.tokens.vocabulary import Vocabulary

LENGTH = 64
COLA = {"cola": ("in_domain_dev", "out_of_domain_dev"), "cola_train": ("in_domain_train",)}
"""The evaluation parts, and the one for tuning."""
MODELS: Mapping[str, Callable[..., TextModel]] = {"gpt2": gpt2, "bert": bert, "llama": llama}
SIZES: Mapping[str, Mapping[str, Any]] = {"gpt2": {}, "bert": {}, "llama": {"width": 1024, "heads": 16}}
MARKS = {
    "gpt2": Vocabulary(size=50257, pad=50256, end=50256),
    "llama": Vocabulary(size=50257, pad=50256, end=50256),
    "bert": Vocabulary(size=50259, pad=50256, end=50257, start=50258),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of a table."""

    table: str
    model: str = "gpt2"
    corpus: str = "rotten_tomatoes"
    task: str = "next"
    batch: int = 1
    clients: int = 1
    steps: int = 1
    rate: float = 1e-3
    defence: str = "none"
    strength: float = 0.0
    batches: int = 20
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its pieces, without the batch number."""
        extra = "".join(f"-{k}{v}" for k, v in self.arguments.items())
        parts = [self.table, self.model, self.corpus, self.task, f"b{self.batch}"]
        parts += [f"c{self.clients}"] if self.clients > 1 else []
        parts += [f"s{self.steps}-{self.rate:g}"] if self.steps > 1 else []
        parts += [f"{self.defence}{self.strength:g}"] if self.defence != "none" else []
        return "-".join(parts) + extra


def settings(batches: int) -> Iterator[Setting]:
    """All rows of all tables."""
    half = batches // 2
    row = partial(Setting, batches=half)
    for corpus, batch in product(("rotten_tomatoes", "cola"), (1, 2, 4, 8, 16)):
        yield row(table="decoder", corpus=corpus, batch=batch, batches=batches if batch < 16 else half)
    yield from (row(table="class", task="class", batch=batch) for batch in (1, 4, 16))
    yield from (row(table="beyond", batch=b, batches=max(1, half // 2)) for b in (20, 24, 28, 32, 40, 64))
    yield from (row(table="llama", model="llama", batch=batch) for batch in (1, 2, 4, 8, 16))
    for batch in (1, 2, 4):
        yield row(table="bert", model="bert", task="class", batch=batch, batches=batches)
    for rank, batch in product((8, 64, 256), (1, 2, 4, 8)):
        yield row(table="lora", batch=batch, arguments={"rank": rank})
    for steps, rate in product((2, 5, 10), (1e-4, 1e-3, 1e-2)):
        yield row(table="fedavg", batch=4, steps=steps, rate=rate)
    yield from (row(table="sums", batch=2, clients=clients) for clients in (2, 4, 8))
    for batch in (1, 2, 4, 8):
        yield row(table="fresh", model="llama", batch=batch, batches=max(1, half // 2))
    for steps, rate in product((2, 5, 10), (1e-4, 1e-3, 1e-2)):
        yield row(table="fresh", batch=4, steps=steps, rate=rate, batches=max(1, half // 2))
    for defence, values in DEFENCES.items():
        yield from (row(table="defences", batch=4, defence=defence, strength=value) for value in values)


DEFENCES: Mapping[str, tuple[float, ...]] = {
    "noise": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2),
    "clip": (1.0, 0.1),
    "prune": (0.5, 0.7, 0.9, 0.99),
    "dp_sgd": (0.41, 0.6),
    "half": (0.0,),
}
"""By strength: standard deviation, norm, share set to 0, noise multiplier at a clip norm of 1 (0.41: ε = 8
over the rounds of ``reproduce.text_utility``); float16."""


class Corpus:
    """Tokenized sentences of one corpus, the evaluation part."""

    def __init__(self, data: Path, name: str) -> None:
        self.name = name
        words = ByteLevelBPETokenizer(str(data / "gpt2/vocab.json"), str(data / "gpt2/merges.txt"))
        if name in COLA:
            text = "".join((data / f"cola/{part}.tsv").read_text() for part in COLA[name])
            lines = [line.split("\t")[3] for line in text.splitlines() if line.count("\t") >= 3]
        else:
            files = [(data / f"rotten_tomatoes/{part}.txt").read_text("latin-1") for part in ("pos", "neg")]
            lines = [line for text in files for line in _second_half(text.splitlines())]
        self.sentences = [words.encode(line.strip()).ids for line in dict.fromkeys(lines) if line.strip()]

    def draw(self, count: int, seed: int) -> list[list[int]]:
        """Draw distinct sentences."""
        return [self.sentences[i] for i in _shuffled(len(self.sentences), seed)[:count]]

    @cached_property
    def unseen(self) -> list[list[int]]:
        """Sentences not used by any row when the code was last fixed, in an order of their own."""
        size = len(self.sentences)
        seen = {
            index
            for one in settings(20)
            if one.corpus == self.name and one.table != "fresh"
            for number in range(one.batches)
            for index in _shuffled(size, 1000 * one.batch + number)[: one.batch * one.clients]
        }
        return [self.sentences[i] for i in _shuffled(size, 999_999) if i not in seen]


def _shuffled(size: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _second_half(lines: list[str]) -> list[str]:
    return lines[len(lines) // 2 :]


def gradient(model: TextModel, tokens: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], float]:
    """Gradient of the mean loss by tensor name, and the loss."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = model.losses(tokens, labels).mean()
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)), float(
        loss.detach()
    )


def answer_of(
    model: TextModel, setting: Setting, tokens: Tensor, labels: Tensor
) -> tuple[dict[str, Tensor], float]:
    """The sent update of a client, or the sum over clients, after its defence; and the loss."""
    if setting.steps > 1:
        return local_steps(model, setting, tokens, labels)
    if setting.defence == "dp_sgd":
        total: dict[str, Tensor] = {}
        losses = []
        for row, label in zip(tokens.split(1), labels.split(1), strict=True):
            one, loss = gradient(model, row, label)
            norm = torch.stack([g.norm() for g in one.values()]).norm()
            losses.append(loss)
            for name, g in one.items():
                total[name] = total.get(name, 0) + g / norm.clamp_min(1.0) / len(tokens)
        noise = setting.strength / len(tokens)
        return {name: g + noise * torch.randn_like(g) for name, g in total.items()}, sum(losses) / len(losses)
    sent, loss = gradient(model, tokens, labels)
    return defended(sent, setting), loss


def defended(sent: dict[str, Tensor], setting: Setting) -> dict[str, Tensor]:
    """The gradient after a defence."""
    kind, strength = setting.defence, setting.strength
    if kind == "noise":
        return {name: g + strength * torch.randn_like(g) for name, g in sent.items()}
    if kind == "clip":
        norm = torch.stack([g.norm() for g in sent.values()]).norm()
        return {name: g * (strength / norm).clamp(max=1) for name, g in sent.items()}
    if kind == "prune":
        return {
            name: g.where(g.abs() > g.abs().flatten().kthvalue(max(1, int(strength * g.numel()))).values, 0.0)
            for name, g in sent.items()
        }
    if kind == "half":
        return {name: g.half().float() for name, g in sent.items()}
    return sent


def local_steps(
    model: TextModel, setting: Setting, tokens: Tensor, labels: Tensor
) -> tuple[dict[str, Tensor], float]:
    """The change of parameters over plain SGD steps on the whole batch; the model is restored."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in named.items()}
    losses = []
    for _ in range(setting.steps):
        step, loss = gradient(model, tokens, labels)
        losses.append(loss)
        with torch.no_grad():
            for name, p in named.items():
                p -= setting.rate * step[name]
    change = {name: p.detach() - before[name] for name, p in named.items()}
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(before[name])
    return change, losses[-1]


def piece(model: TextModel, setting: Setting, sentences: list[list[int]], device: str) -> dict[str, Any]:
    """Attack one batch."""
    tokens = model.vocabulary.stack(sentences, length=LENGTH).to(device)
    labels = torch.arange(len(tokens), device=device) % 2
    began = time.perf_counter()
    sent, loss = answer_of(model, setting, tokens, labels)
    _wait(device)
    trained = time.perf_counter()
    answer = Answer(
        about=About(rounds=(0,)), model=model, sent=sent, examples=len(tokens), steps=setting.steps
    )
    found = Dager().sentences(answer, length=LENGTH, generator=torch.Generator().manual_seed(0))
    _wait(device)
    real = model.vocabulary.real(tokens)
    marks = {model.vocabulary.start, model.vocabulary.end, model.vocabulary.pad}
    return {
        "setting": asdict(setting),
        "truth": [
            [t for t in row[mask].tolist() if t not in marks] for row, mask in zip(tokens, real, strict=True)
        ],
        "found": [[t for t in one.tokens if t not in marks] for one in found[: len(tokens)]],
        "claimed": len(found),
        "rows": EmbeddingRows().named(answer).tolist() if not setting.arguments.get("rank") else None,
        "tokens": int(real.sum()),
        "loss": loss,
        "norm": float(torch.stack([g.norm() for g in sent.values()]).norm()),
        "seconds": {"gradient": trained - began, "attack": time.perf_counter() - trained},
    }


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def exact(record: Mapping[str, Any]) -> tuple[int, int]:
    """Number of private sentences claimed exactly, and number of private sentences."""
    claimed = {tuple(one) for one in record["found"]}
    return sum(tuple(one) in claimed for one in record["truth"]), len(record["truth"])


def build(setting: Setting, device: str) -> TextModel:
    """The model of a setting, with random weights."""
    torch.manual_seed(0)
    arguments = {**SIZES[setting.model], **setting.arguments}
    model = MODELS[setting.model](
        (LENGTH,), 2, vocabulary=MARKS[setting.model], task=setting.task, **arguments
    )
    return model.to(device).eval()


def compute(arguments: argparse.Namespace) -> None:
    """Compute all missing pieces of the requested tables."""
    corpora: dict[str, Corpus] = {}
    kept: tuple[Any, TextModel] | None = None
    for setting in settings(arguments.batches):
        if arguments.tables and setting.table not in arguments.tables.split(","):
            continue
        if not setting.name.startswith(arguments.only):
            continue
        missing = [i for i in range(setting.batches) if not _path(arguments, setting, i).exists()]
        if not missing:
            continue
        corpus = corpora.setdefault(setting.corpus, Corpus(arguments.data, setting.corpus))
        key = (setting.model, setting.task, str(setting.arguments))
        if kept is None or kept[0] != key:
            kept = None
            kept = (key, build(setting, arguments.device))
        hits = total = 0
        seconds = 0.0
        for number in missing:
            torch.manual_seed(number)
            if setting.table == "fresh":
                sentences = corpus.unseen[setting.batch * number : setting.batch * (number + 1)]
            else:
                sentences = corpus.draw(setting.batch * setting.clients, 1000 * setting.batch + number)
            record = piece(kept[1], setting, sentences, arguments.device)
            _path(arguments, setting, number).write_text(json.dumps(record))
            here = exact(record)
            hits, total = hits + here[0], total + here[1]
            seconds += record["seconds"]["attack"]
        print(f"{setting.name:50s} {hits}/{total} exact, {seconds / len(missing):.2f} s a batch", flush=True)


def _path(arguments: argparse.Namespace, setting: Setting, number: int) -> Path:
    return Path(arguments.folder / f"{setting.name}-{number:03d}.json")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default="")
    parser.add_argument("--only", default="", help="what the names of pieces begin with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GLASSHOUSE_DATA", ".")) / "text")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    compute(arguments)


if __name__ == "__main__":
    main()
