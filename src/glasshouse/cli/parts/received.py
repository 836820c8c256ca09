"""What ``glasshouse guard`` does and prints; apart from the command, whose help must not wait for torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rich.markup import escape
from rich.table import Column, Table

from glasshouse.api import AGREED
from glasshouse.api.guard import agreed_tensors, architecture, own_examples, tensors_of
from glasshouse.api.guard import guard as inspect_model
from glasshouse.cli.parts.output import say, say_json
from glasshouse.disk import write_text
from glasshouse.errors import BadValue
from glasshouse.guard.fit import Fit
from glasshouse.guard.inspect import Seen
from glasshouse.guard.pursuit.limits import FEWEST, JUDGED, OTHERS, SEARCHED
from glasshouse.guard.vectors import SMALLEST
from glasshouse.models.build import build
from glasshouse.outside import text
from glasshouse.outside.files import printable
from glasshouse.outside.screen import Screen
from glasshouse.report import words
from glasshouse.report.html import Verdict, write_page
from glasshouse.report.numbers import plain
from glasshouse.report.sarif import sarif as sarif_log
from glasshouse.results.exhibits import Place, boxes, table
from glasshouse.results.records import Exhibit

COLUMNS = ("model", "vectors", "too small", "minimum", "3rd percentile", "median", "findings")
TERMS = (
    (
        "Layer, row, column, bias",
        "a model is a stack of layers, each a table of numbers with some extra ones.",
    ),
    ("Vector", "the numbers of one filter, one table or one bias, looked at together."),
    ("Entropy", "how much the numbers of a vector differ: 1 all, 0 none. Crafted layers repeat themselves."),
    ("Rows that repeat or are zero", "let a server copy single examples out of what a client sends."),
)
TRIED = (
    "Not covered: what honest models of this architecture give away as well (rarely firing units, labels, "
    "small batches), a leak of a few examples more than theirs, read-outs of many rows or that "
    "depend on the batch, and what gradient inversion would find. Check your update before you send it "
    "(preflight)."
)
TOO_FEW = (
    "Not covered: what the model does to your data. "
    f"Of fewer than {FEWEST} examples nothing can be told, for they stand alone in any update: give more."
)
UNTRIED = (
    "Not covered: what the model does to your data. A model that was made to leak can pass every rule that "
    "reads weights: give --data and --agreed."
)
UNREACHED = (
    "dead for all {tried} examples tried, so nothing of them can be read there, and nothing is known of "
    "others: a training that collapsed, a model that waits for an example it knows, or thresholds that few "
    "reach.{more} Check your update (preflight)."
)
MORE = (
    f" There were no more to try (up to {JUDGED + SEARCHED + OTHERS} are): what 1 example in 100 reaches is "
    "dead for "
    "64 of them in every second case."
)
NOT_JUDGED = 3
_SHOWN = 3


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line asked for; each field is an option of the command.

    Attributes:
        models: the files to inspect.
        agreed: architecture in one line, or a file of terms; empty: names and shapes are not compared.
        reference: an honest model's file.
        data: the client's own examples; empty: the models are not tried.
        page: file of the page to write.
        sarif: file of the findings as SARIF.
        trust_factory: run the code of a module:factory.
        as_json: print JSON.
    """

    models: tuple[Path, ...]
    agreed: str = ""
    reference: Path | None = None
    data: str = ""
    page: Path | None = None
    sarif: Path | None = None
    trust_factory: bool = False
    as_json: bool = False


def answer(asked: Asked) -> int:
    """Inspect each model, write and print what was found; return the exit code.

    Raises:
        BadValue: no model was named, or examples without an architecture.
    """
    if not asked.models:
        raise BadValue("glasshouse guard", needs="a model's file", got="none", fix="name one")
    inspected = _inspect(asked)
    own = dict(list(inspected.items())[: len(asked.models)])  # the reference is shown, not judged
    judged = _verdict(own, compared=bool(asked.agreed or asked.reference), tried=bool(asked.data))
    if asked.sarif is not None:
        findings = {
            path: one.inspection.findings for path, one in zip(asked.models, own.values(), strict=True)
        }
        write_text(asked.sarif, text.as_json(sarif_log(findings), indent=1))
    if asked.page is not None:
        tagline = "models as a client received them"
        write_page(asked.page, verdict=judged, tagline=tagline, exhibits=exhibits(inspected))
    if asked.as_json:
        say_json({name: _plain(one) for name, one in inspected.items()})
    else:
        _print(inspected)
        say(f"{judged.title}. {judged.lead}")
        if asked.page is not None:
            say(f"report: {asked.page}")
    verdicts = {one.verdict for one in own.values()}
    return 1 if "refused" in verdicts else NOT_JUDGED if "not judged" in verdicts else 0


def _inspect(asked: Asked) -> dict[str, Seen]:
    """What was found in each model, by a short name, and in the reference after them."""
    trusted = asked.trust_factory
    expected = agreed_tensors(asked.agreed, trust_factory=trusted) if asked.agreed else {}
    tried: dict[str, Any] = _trial(asked.agreed, asked.data, trust_factory=trusted) if asked.data else {}
    honest = tensors_of(asked.reference, [list(expected)]) if asked.reference else None
    inspected: dict[str, Seen] = {}
    for path in asked.models:
        name = path.stem if path.stem not in inspected else str(path)
        inspected[name] = inspect_model(path, **{"agreed": expected or "", "reference": honest, **tried})
    if asked.reference and honest is not None:
        inspected[f"{asked.reference.stem} (reference)"] = inspect_model(honest)
    return inspected


def _plain(one: Seen) -> dict[str, Any]:
    return {
        "verdict": one.verdict,
        "findings": one.inspection.findings,
        "not_looked_at": one.apart if one.judged is None else list(one.judged.unseen),
        **one.inspection.values,
    }


def _trial(agreed: str, data: str, *, trust_factory: bool) -> dict[str, Any]:
    """The agreed network, and the examples on which models are tested.

    Raises:
        BadValue: no architecture was given.
    """
    if not agreed:
        raise BadValue(
            "option --data",
            needs="the architecture (--agreed)",
            got="none",
            fix=f"add --agreed {AGREED}",
        )
    expected = architecture(agreed, trust_factory=trust_factory)
    return {"agreed": build(expected), "data": own_examples(data, expected)}


QUESTION = "May you train on it?"


def _verdict(models: dict[str, Seen], *, compared: bool, tried: bool) -> Verdict:
    """Whether a client may train on these models; *unclear* where some rules were not applied."""
    suspicious = {name: one.inspection.findings for name, one in models.items() if one.inspection.findings}
    total, names = words.count(len(models), "models"), words.join_words(list(suspicious))
    if suspicious:
        first = printable(next(iter(suspicious.values()))[0])
        these = "this" if len(models) == 1 else f"{len(suspicious)} of {total}"
        word, title = "No", f"Do not train on {these}: {first}"
        findings = words.count(sum(len(sentences) for sentences in suspicious.values()), "findings")
        lead = f"{findings} in {printable(names)} that honest models do not show."
        lead += " The others passed, which is no proof." if len(suspicious) < len(models) else ""
    else:
        unjudged = [one.judged.summary for one in models.values() if one.judged and one.judged.reason]
        title = printable(unjudged[0].rstrip(".")) if unjudged else "Nothing odd was found"
        lead = f"No rule found anything in {total}. {TOO_FEW if unjudged else TRIED if tried else UNTRIED}"
        word = "Yes" if compared and tried and not unjudged else "Unclear"
    if not compared:
        lead += " Names and shapes were not compared: no architecture was given (--agreed)."
    kinds = {"No": "leaks", "Yes": "no leak found", "Unclear": "not shown"}
    return Verdict(title=title, lead=lead, kind=kinds[word], word=word, question=QUESTION, terms=TERMS)


def exhibits(models: dict[str, Seen]) -> list[Exhibit]:
    """The findings, a table with a row per model, and a box plot per model."""
    place = Place(scenario="guard")
    entropies = {name: one.entropies.tolist() for name, one in models.items() if len(one.entropies)}
    sentences = [[name, sentence] for name, one in models.items() for sentence in one.inspection.findings]
    listing = table(
        place,
        "Findings",
        "Each is enough to refuse to train.",
        columns=["model", "finding"],
        rows=sentences,
    )
    numbers = table(
        place,
        "Entropy, model by model",
        "In honest models of Maui's authors no entropy is below 0.88; below 0.5 is a finding. "
        f"Too small: vectors of fewer than {SMALLEST} values, whose entropy is not measured. Not looked "
        "at: tensors that are no weight of a convolution or linear layer and no bias; only whether their "
        "values are finite was tested.",
        columns=[*COLUMNS[:-1], "not looked at", COLUMNS[-1]],
        rows=[[k, *_numbers(one), len(one.apart), len(one.inspection.findings)] for k, one in models.items()],
    )
    plot = boxes(
        place,
        "Entropy of weight vectors",
        "One value per kernel of a convolution, per linear layer and per bias that is not zero; "
        "1: all values differ.",
        label="normalised entropy (bins of 1e-6)",
        values=entropies,
    )
    return [*([listing] if sentences else []), numbers, *([plot] if entropies else [])]


def _numbers(one: Seen) -> list[float | None]:
    """Number of vectors and of too small ones, and entropy statistics; None: not measured."""
    values = one.inspection.values
    counts = [int(values["vectors"]), int(values["skipped"])]
    return [*counts, *(values.get(name) for name in ("minimum", "percentile_3", "median"))]


def _fit(values: Mapping[str, float]) -> str:
    def read(whose: str) -> Fit:
        loss, examples = values[f"{whose}loss"], int(values[f"{whose}examples"])
        return Fit(loss=loss, examples=examples, accuracy=values.get(f"{whose}accuracy"))

    return read("").sentence(read("reference_") if "reference_loss" in values else None)


def _list_unseen(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    tensors = "1 tensor was" if len(names) == 1 else f"{len(names)} tensors were"
    return f"{tensors} not looked at, but for values that are not finite: {', '.join(names[:_SHOWN])}{more}"


def _forms(one: Seen) -> tuple[str, ...]:
    """What is unusual in how a model is written down, and no finding."""
    resting = words.count(len(one.resting), "adapters")
    start = f"{resting} at their start of zero, beside a partner that is not" if one.resting else ""
    return tuple(sentence for sentence in (one.form, start) if sentence)


def _print(models: dict[str, Seen]) -> None:
    console = Screen()
    heads = [Column(name, justify="left" if name == "model" else "right") for name in COLUMNS]
    table = Table(*heads, title="entropy of weight vectors (0: all alike, 1: all differ)")
    for name, one in models.items():
        vectors, small, *entropies = _numbers(one)
        numbers = [str(vectors), str(small), *("-" if x is None else plain(x, digits=2) for x in entropies)]
        table.add_row(escape(printable(name)), *numbers, str(len(one.inspection.findings)))
    console.print(table)
    for name, one in models.items():
        # Findings come before what only helps to read them.
        for sentence in (*_forms(one), *one.inspection.findings):
            _say(console, f"{name}: {sentence}")
        if one.judged is not None:
            _say(console, f"{name}: {one.judged.summary}")
    for name, one in models.items():
        if "accuracy" in one.inspection.values:
            _say(console, f"{name}: {_fit(one.inspection.values)}")
        # What was not looked at is said, as "passed" does not cover it.
        if number := int(one.inspection.values.get("unreached", 0)):
            tried = int(one.inspection.values["tried"])
            more = MORE if tried < JUDGED + SEARCHED + OTHERS else ""
            layers = words.count(number, "layers")
            _say(console, f"{name}: {layers} {UNREACHED.format(tried=tried, more=more)}")
    if any(one.inspection.values["skipped"] for one in models.values()):
        console.print(
            f"Too small: vectors of fewer than {SMALLEST} values; their entropy is not measured.",
            soft_wrap=True,
        )
    for name, one in models.items():
        if one.apart and one.judged is None:
            _say(console, f"{name}: {_list_unseen(one.apart)}")


def _say(console: Screen, sentence: str) -> None:
    """Print a sentence literally: tensor names come from untrusted files and must not be interpreted."""
    console.print(printable(sentence), soft_wrap=True, highlight=False, markup=False)
