"""TAG and LAMP against DAGER on the same batches, with DAGER's CPU time, and with multiples of it.

    python -m reproduce.text_baselines FOLDER [--only same-b1] [--tune] [--show] [--data FOLDER]

Every batch is a piece, a file in FOLDER: DAGER first, then both attacks at every multiple of its CPU seconds.
The corresponding number of iterations is measured on a few of them. Existing pieces are not computed again;
``--show`` prints their tables.

Model: ``small_gpt``, GPT-2's layout with 3 layers, d = 192 and random weights, for binary classification, as
in LAMP's paper; GPT-2's tokens that occur in Rotten Tomatoes. Lengths and classes are not given to any
attack. The first half of the sentences is the adversary's: LAMP's prior is fitted to the odd ones, and steps
and weights were tuned on the even ones (``--tune``). Evaluation is on the second half.

Needs: the extra ``text``; ``--data`` (or ``$GLASSHOUSE_DATA/text``) with ``gpt2/`` and ``rotten_tomatoes/``.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rouge_score import rouge_scorer
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor

from glasshouse.attacks.base import Attack, Claim
from glasshouse.attacks.objective import SearchingAttack
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.attacks.text.dager import Dager
from glasshouse.attacks.text.lamp import Lamp
from glasshouse.attacks.text.tag import Tag
from glasshouse.metrics.statistics.interval import mean_interval
from glasshouse.metrics.text.sentences import pair_sentences
from glasshouse.modalities.sentence import Sentence
from glasshouse.models.text.base import TextModel
from glasshouse.models.text.small import small_gpt
from glasshouse.results.strength import Search
from glasshouse.rng import Rng
from glasshouse.tasks.next_token import NextToken
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update
from reproduce.text import gradient
from reproduce.text_tables import Words

LENGTH = 64
SIZE = {"layers": 3, "width": 192, "heads": 4, "task": "class"}
PROBE = 12
"""Number of iterations timed to estimate the cost of one."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of a table.

    Attributes:
        table: table of the row; tables are computed in order.
        batch: number of sentences.
        noise: standard deviation of the noise added to the gradient.
        attacks: attacks besides DAGER.
        multiples: their CPU budgets as multiples of DAGER's; ignored if ``seconds`` is not 0.
        seconds: their CPU budget in seconds; 0: use ``multiples``.
    """

    table: str
    batch: int = 1
    noise: float = 0.0
    attacks: tuple[str, ...] = ("tag", "lamp")
    multiples: tuple[float, ...] = (1.0, 10.0)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Name of its pieces, without the batch number."""
        return f"{self.table}-b{self.batch}-noise{self.noise:g}"


SETTINGS = (
    Setting(table="same", batch=1),
    Setting(table="same", batch=4),
    *(Setting(table="long", noise=n, attacks=("lamp",), seconds=12.0) for n in (0.0, 1e-4, 1e-3, 1e-2)),
)


class Halves:
    """Tokenized Rotten Tomatoes in two halves: ``known`` to the adversary, and ``private``."""

    def __init__(self, known: Sequence[Sequence[int]], private: Sequence[Sequence[int]]) -> None:
        every = sorted({token for sentence in (*known, *private) for token in sentence})
        number = {token: place + 2 for place, token in enumerate(every)}
        self.vocabulary = Vocabulary(size=len(every) + 2, pad=0, end=1)
        self.known, self.private = (
            [tuple(number[token] for token in sentence) for sentence in half] for half in (known, private)
        )

    def draw(self, count: int, seed: int) -> list[tuple[int, ...]]:
        """Draw distinct private sentences."""
        order = torch.randperm(len(self.private), generator=torch.Generator().manual_seed(seed))
        return [self.private[i] for i in order[:count]]


def model_of(vocabulary: Vocabulary) -> TextModel:
    """The model, with random weights."""
    torch.manual_seed(0)
    sentences = Sentence(vocabulary=vocabulary, length=LENGTH)
    return small_gpt(sentences, NextToken(vocabulary=vocabulary, length=LENGTH), **SIZE).eval()


def view_of(model: TextModel, halves: Halves, tokens: Tensor, sent: Mapping[str, Tensor]) -> View:
    """A server's view of one update, with the adversary's own sentences."""
    words = halves.vocabulary
    architecture = Architecture(
        name="small_gpt",
        inputs=Sentence(vocabulary=words, length=LENGTH),
        task=NextToken(vocabulary=words, length=LENGTH),
        arguments=SIZE,
    )
    state = {name: t.detach() for name, t in model.state_dict().items()}
    update = Update(round=0, client=0, kind="gradient", tensors=sent, examples=len(tokens))
    broadcast = Broadcast(round=0, architecture=architecture, tensors=state)
    known = halves.vocabulary.stack(halves.known, length=LENGTH)
    return View(
        terms=Terms(
            protocol="fedsgd", architecture=architecture, sends="gradient", clients=1, cohort=1,
            batch_size=len(tokens),
        ),
        threat=Threat(),
        rounds=(RoundView(round=0, broadcast=broadcast, updates={0: update}),),
        grants=Grants(auxiliary=Batch(inputs=known, labels=torch.zeros(len(known)).long())),
    )  # fmt: skip


def tag(iterations: int) -> Attack:
    """TAG with ``iterations`` iterations."""
    return Tag(search=Descent(iterations=iterations, restarts=1, learning_rate=0.3))


def lamp(iterations: int) -> Attack:
    """LAMP with ``iterations`` iterations in four parts, and a fifth as many starts and as many moves.

    On tuning sentences, steps of 0.6 were better for 60 iterations, steps of 0.3 for 200.
    """
    few = max(2, iterations // 5)
    return Lamp(
        search=Descent(iterations=iterations, restarts=1, learning_rate=0.6 if iterations < 100 else 0.3),
        starts=few,
        every=max(1, iterations // 4),
        moves=max(1, few // 4),
        prior=0.002,
    )


ATTACKS: Mapping[str, Callable[[int], Attack]] = {"tag": tag, "lamp": lamp}


def timed(attack: Attack, view: View) -> tuple[Claim, float]:
    """The claim, and CPU seconds."""
    began = time.process_time()
    (claim,) = attack.run(view, rng=Rng.root(0))
    return claim, time.process_time() - began


def sentences_of(claim: Claim, view: View) -> list[tuple[int, ...]]:
    """The claimed sentences."""
    inputs = view.terms.architecture.inputs
    assert isinstance(inputs, Sentence)
    vocabulary = inputs.vocabulary
    examples = view.rounds[0].updates[0].examples
    return vocabulary.words(claim.tokens[:examples])  # type: ignore[attr-defined]  # sequences


def search(attack: Attack, view: View, claim: Claim, truth: Batch) -> dict[str, Any]:
    """The attack's loss at its claim and at the true sentences."""
    assert isinstance(attack, SearchingAttack)
    searched = attack.objective(view, claim.about, rng=Rng.root(0))
    unknown = torch.full((len(truth),), -1)
    said = claim.tokens, unknown  # type: ignore[attr-defined]  # sequences
    loss, best = (
        float(searched.loss(x[None], y[None]).detach()) for x, y in (said, (truth.inputs, truth.labels))
    )
    row = Search(name="", loss=loss, truth=best, noise=searched.noise)
    return {"loss": loss, "loss of the truth": best, "finished": row.finished}


def baselines(view: View, setting: Setting, seconds: float, truth: Batch) -> dict[str, dict[str, Any]]:
    """Run a setting's attacks within DAGER's ``seconds``; ``truth`` is used to evaluate their searches."""
    rows: dict[str, dict[str, Any]] = {}
    allowed = {f"{m:g} x": m * seconds for m in setting.multiples}
    if setting.seconds:
        allowed = {f"{setting.seconds:g} s": setting.seconds}
    for name, attack in ((name, ATTACKS[name]) for name in setting.attacks):
        fixed, probe = (timed(attack(count), view)[1] for count in (1, 1 + PROBE))
        each = max(1e-4, (probe - fixed) / PROBE)
        for words, limit in allowed.items():
            iterations = max(1, int((limit - fixed) / each))
            claim, spent = timed(attack(iterations), view)
            ended = search(attack(iterations), view, claim, truth)
            found = {"found": sentences_of(claim, view), "seconds": spent, "iterations": iterations}
            rows[f"{name} {words}"] = found | ended
    return rows


def nulls(halves: Halves, count: int, seed: int) -> dict[str, list[tuple[int, ...]]]:
    """Null claims without any update: sentences of the known half, and its frequent tokens by position."""
    order = torch.randperm(len(halves.known), generator=torch.Generator().manual_seed(seed + 1))
    likely = frequent(tuple(halves.known))
    return {
        "null: a known sentence": [halves.known[i] for i in order[:count]],
        "null: frequent tokens": [likely] * count,
    }


@cache
def frequent(known: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The most frequent token at every position, up to the median length."""
    length = sorted(map(len, known))[len(known) // 2]
    return tuple(
        int(torch.tensor([s[place] for s in known if place < len(s)]).mode().values)
        for place in range(length)
    )


def piece(model: TextModel, halves: Halves, setting: Setting, number: int) -> dict[str, Any]:
    """Run every attack on one batch."""
    seed = 1000 * setting.batch + number
    sentences = halves.draw(setting.batch, seed)
    tokens = halves.vocabulary.stack(sentences, length=LENGTH)
    labels = torch.arange(len(tokens)) % 2
    sent, loss = gradient(model, tokens, labels)
    draws = torch.Generator().manual_seed(seed)
    sent = {name: g + setting.noise * torch.randn(g.shape, generator=draws) for name, g in sent.items()}
    view = view_of(model, halves, tokens, sent)
    claim, seconds = timed(Dager(), view)
    others = baselines(view, setting, seconds, Batch(inputs=tokens, labels=labels))
    guesses = {name: {"found": said} for name, said in nulls(halves, setting.batch, seed).items()}
    return {
        "setting": asdict(setting),
        "truth": halves.vocabulary.words(tokens),
        "found": sentences_of(claim, view),
        "tokens": int(halves.vocabulary.real(tokens).sum()),
        "loss": loss,
        "norm": float(torch.stack([g.norm() for g in sent.values()]).norm()),
        "seconds": {"attack": seconds},
        "others": {**others, **guesses},
    }


KINDS = ("rouge1", "rouge2", "rougeL")


def scores(true: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> list[list[float]]:
    """Scores of every private sentence after pairing: exact match, tokens in place, ROUGE-1, 2 and L."""
    scorer = rouge_scorer.RougeScorer(list(KINDS), tokenizer=Words())
    wanted, said = [tuple(one) for one in true], [tuple(one) for one in found]
    rows = []
    for one, other in zip(wanted, pair_sentences(wanted, said), strict=True):
        claim = other or ()
        rouge = scorer.score(" ".join(map(str, one)), " ".join(map(str, claim)))
        placed = sum(a == b for a, b in zip(one, claim, strict=False)) / len(one)
        rows.append([float(one == claim), placed, *(rouge[kind].fmeasure for kind in KINDS)])
    return rows


def show(records: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per attack over all pieces of a setting; intervals are over batches."""
    first = {"dager": {"found": None}}
    for name in {**first, **records[0]["others"]}:
        rows, placed, finished, spent, iterations = [], [], [], 0.0, 0
        for record in records:
            one = {"found": record["found"], "seconds": record["seconds"]["attack"]}
            one = one if name == "dager" else record["others"][name]
            here = scores(record["truth"], one["found"])
            rows += here
            placed.append(sum(row[1] for row in here) / len(here))
            finished += [one["finished"]] if "finished" in one else []
            spent, iterations = spent + one.get("seconds", 0.0), iterations + one.get("iterations", 0)
        table = torch.tensor(rows, dtype=torch.float64)
        exact, _, *rouge = table.mean(0).tolist()
        interval = mean_interval(placed, rng=Rng.root(0))
        print(
            f"    {name:24s} exact {int(table[:, 0].sum())}/{len(table)} = {exact:.2f}"
            f"  in place {interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]  rouge "
            + ", ".join(f"{value:.3f}" for value in rouge)
            + f"  {spent / len(records):6.2f} CPU s  {iterations / len(records):5.0f} iterations"
            + (f", {sum(finished)} of {len(finished)} searches finished" if finished else ""),
            flush=True,
        )


def read_halves(data: Path, *, tune: bool) -> Halves:
    """Read Rotten Tomatoes; ``tune``: the private sentences are the even ones of the adversary's half."""
    words = ByteLevelBPETokenizer(str(data / "gpt2/vocab.json"), str(data / "gpt2/merges.txt"))
    first, second = [], []
    for part in ("pos", "neg"):
        lines = (data / f"rotten_tomatoes/{part}.txt").read_text("latin-1").splitlines()
        first += lines[: len(lines) // 2]
        second += lines[len(lines) // 2 :]
    known, private = (
        [words.encode(line.strip()).ids for line in dict.fromkeys(half) if line.strip()]
        for half in (first, second)
    )
    halves = Halves(known[1::2], [*private, *known[::2]])
    size = len(private)
    halves.private = halves.private[size:] if tune else halves.private[:size]
    return halves


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--only", default="", help="what the names of pieces begin with")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GLASSHOUSE_DATA", ".")) / "text")
    arguments = parser.parse_args()
    folder = arguments.folder / ("tune" if arguments.tune else "judge")
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.show:
        for setting in SETTINGS:
            records = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{setting.name}-*.json"))]
            if records:
                print(f"{setting.name}, {len(records)} batches, {_tokens(records):.0f} tokens")
                show(records)
        return
    torch.set_num_threads(1)
    halves = read_halves(arguments.data, tune=arguments.tune)
    model = model_of(halves.vocabulary)
    chosen = [one for one in SETTINGS if one.name.startswith(arguments.only)]
    pieces = [(number, one) for number in range(arguments.batches) for one in chosen]
    for number, setting in sorted(pieces, key=lambda one: one[1].table, reverse=True):
        path = folder / f"{setting.name}-{number:03d}.json"
        if not path.exists():
            path.write_text(json.dumps(piece(model, halves, setting, number)), encoding="utf-8")
            print(path.name, flush=True)


def _tokens(records: Sequence[Mapping[str, Any]]) -> float:
    return sum(record["tokens"] for record in records) / len(records)


if __name__ == "__main__":
    main()
