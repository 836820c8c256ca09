"""Where the terms of a capture come from, ``origins.json``; and how they are corrected afterwards.

What clients do in a local step is in no message. It is stated by the operator, read from the app (its run
configuration, the server's messages, the optimizer of a test client), or assumed, and marked so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from glasshouse.errors import BadFile, BadValue
from glasshouse.outside import limits
from glasshouse.outside.schema import freeze
from glasshouse.scenario.overrides import PathError, assign, split_assignment
from glasshouse.settings import Optimizer, Training
from glasshouse.store import read_json, write_json, write_jsonl
from glasshouse.transcript import described
from glasshouse.transcript.files import read_index, read_terms
from glasshouse.truth.record import Truth
from glasshouse.truth.recorded import Recorded
from glasshouse.wire import Terms

NAME: Final = "origins.json"
ASSUMED: Final = "assumed"
STATED: Final = "stated"
CORRECTED: Final = "corrected by hand"
TESTED: Final = "read from a test client"
COUNTED: Final = "num-examples"
"""Not a term: what clients report as their number of examples."""
KEYS: Final = (
    "batch_size", "local_epochs", "learning_rate", "optimizer.name", "optimizer.momentum",
    "optimizer.weight_decay", "training.mode",
)  # fmt: skip
"""The terms that every update depends on."""
_OPEN: Final = (
    "batch_size",
    "local_epochs",
    "learning_rate",
    "optimizer",
    "training",
    "options",
    "weighting",
    "task",
)
"""What may be corrected afterwards; all else was observed."""
_NAMED: Final = ("training.personal", "training.fixed")
"""What decided under which names tensors were recorded."""

Values = Mapping[str, Any]


def require_capture(folder: Path) -> None:
    """Refuse a folder that holds no capture, by its whole path.

    Raises:
        BadFile: it has no terms.
    """
    if not (folder / "transcript" / "terms.json").is_file():
        raise BadFile(
            f"capture '{folder}'",
            needs="the folder of a capture, with transcript/terms.json in it",
            got="no such folder" if not folder.exists() else f"no '{folder / 'transcript' / 'terms.json'}'",
            fix="give the folder that capture(app, FOLDER, ...) names, after a round has run",
        )


def origins_of(stated: Mapping[str, Any], read: Mapping[str, str]) -> dict[str, str]:
    """The origin of every key, of terms that were stated by hand and keys that were read somewhere."""
    return {key: _origin(key, stated, read) for key in dict.fromkeys((*KEYS, *read))}


def _origin(key: str, stated: Mapping[str, Any], read: Mapping[str, str]) -> str:
    table, _, inner = key.partition(".")
    if table in stated and (not inner or table == "optimizer" or inner in stated[table]):
        return STATED
    return read.get(key, ASSUMED)


def read_origins(capture: Path) -> dict[str, str]:
    """The origins of a capture's terms; empty for a transcript that was written otherwise."""
    place = capture / NAME
    if not place.is_file():
        return {}
    raw = read_json(place, most=limits.JSON_BYTES)
    return {str(key): str(value) for key, value in raw.items()} if isinstance(raw, dict) else {}


def with_values(terms: Terms, values: Values) -> Terms:
    """``terms`` with other values, by dotted key.

    Raises:
        BadValue: they do not fit together.
    """
    tables = {"optimizer": terms.optimizer.model_dump(), "training": terms.training.model_dump()}
    plain = {}
    for key, value in values.items():
        table, _, inner = key.partition(".")
        if inner:
            tables[table][inner] = value
        else:
            plain[key] = value
    try:
        optimizer = Optimizer.model_validate(freeze(tables["optimizer"]))
        training = Training.model_validate(freeze(tables["training"]))
    except ValidationError as error:
        raise BadValue(
            "terms of a capture",
            needs="values that fit together",
            got=str(error.errors()[0]["msg"]),
            fix="glasshouse terms CAPTURE --set key=value",
        ) from error
    return replace(terms, optimizer=optimizer, training=training, **plain)


def correct(capture: Path, sets: Sequence[str]) -> None:
    """Assign terms of a capture that were not observed, and note that they were corrected.

    Args:
        capture: its folder.
        sets: ``key=value``: ``learning_rate=0.01``, ``optimizer.momentum=0.9``, ``task.smoothing=0.1``; a
            leading ``federation.`` is ignored.

    Raises:
        BadValue: a key that was observed or does not exist, or a value out of range.
    """
    place = capture / "transcript" / "terms.json"
    raw, before = read_json(place, most=limits.JSON_BYTES), read_terms(place.parent, trust_factory=True)
    origins = read_origins(capture)
    for text in sets:
        try:
            path, value = split_assignment(text)
            key = path.removeprefix("federation.")
            table = key.partition(".")[0]
            # What the capture saw itself is no matter of opinion.
            if table not in _OPEN or key in _NAMED or key == "task":
                raise BadValue(
                    f"terms of a capture, '{key}'",
                    needs=f"one of {', '.join(_OPEN)} (tables: with a key of theirs); all else was observed",
                    got=text,
                    fix="what was observed wrongly needs another capture",
                )
            target = raw["architecture"]["task"]["fields"] if table == "task" else raw
            assign(target, key.removeprefix("task."), value)
        except PathError as error:
            problem = error.problem
            raise BadValue(
                "terms of a capture", needs=problem.needs, got=problem.got, fix=problem.hint or "key=value"
            ) from error
        origins |= {key: CORRECTED} if table != "optimizer" or "." in key else _all_of("optimizer")
    # Nothing is written before the whole is known to be readable.
    stated = {key: value for key, value in raw.items() if key != "format"}
    try:
        after = described.terms_of(stated, folder=place.parent, trust_factory=True)
    except BadFile as error:
        fix = "the keys are those of [federation]: docs/scenario.md"
        raise BadValue("terms of a capture", needs=error.needs, got=error.got, fix=fix) from error
    write_json(place, raw)
    write_json(capture / NAME, origins)
    _count_steps_again(capture, before, after)


def _all_of(table: str) -> dict[str, str]:
    return {key: CORRECTED for key in KEYS if key.startswith(table)}


def repair(capture: Path, records: Sequence[Recorded], truth: Truth) -> tuple[str, ...]:
    """Replace assumed terms by what test clients did; note what stated ones contradict; in sentences.

    Counts of examples that are counts of batches are corrected, too.
    """
    folder = capture / "transcript"
    terms, origins = read_terms(folder, trust_factory=True), read_origins(capture)
    if not origins:
        return ()
    said, changed = [], {}
    for key, value in _seen(records, terms).items():
        # What was only assumed gives way to what a test client did; what somebody stated is contradicted in
        # words, and stays.
        now = _value_of(terms, key)
        if now == value:
            origins[key] = TESTED if origins.get(key, ASSUMED) == ASSUMED else origins[key]
        elif origins.get(key, ASSUMED) in (ASSUMED, TESTED):
            changed[key], origins[key] = value, TESTED
            said.append(f"{key} = {value}: {TESTED} (assumed was {now})")
        else:
            said.append(
                f"{key} is {now} ({origins[key]}), but a test client has {value}; correct it: "
                f"glasshouse terms CAPTURE --set {key}={value}"
            )
    said += [f"how a test client steps is not read: {why}" for why in _unread(records)]
    # Only terms that may be assumed are written again; the rest of the file is as it was captured.
    after = with_values(terms, changed)
    raw = read_json(folder / "terms.json", most=limits.JSON_BYTES)
    raw |= {key: getattr(after, key) for key in ("batch_size", "local_epochs", "learning_rate")}
    raw |= {"optimizer": after.optimizer.model_dump(), "training": after.training.model_dump()}
    write_json(folder / "terms.json", raw)
    # The number of steps was computed from batch size and epochs, and follows them.
    _count_steps_again(capture, terms, after)
    if note := _count_examples_again(capture, after, truth):
        origins[COUNTED] = note
        said.append(note)
    write_json(capture / NAME, origins)
    return tuple(said)


def _seen(records: Sequence[Recorded], terms: Terms) -> dict[str, Any]:
    """Terms in which all recorded rounds of all test clients agree, by dotted key."""
    values: dict[str, list[Any]] = {}
    for record in records:
        for key, value in _seen_in(record).items():
            values.setdefault(key, []).append(value)
    agreed = [key for key, found in values.items() if found.count(found[0]) == len(found)]
    size = shown_batch_size(records, terms.batch_size)
    return {key: values[key][0] for key in agreed} | ({} if size is None else {"batch_size": size})


def shown_batch_size(records: Sequence[Recorded], stated: int) -> int | None:
    """The batch size that test clients show; None: they show nothing that is not stated.

    A client with fewer examples than a batch has all of them in every step: it shows that the batch is no
    smaller, and no more. One step alone shows nothing.
    """
    stepping = [one for one in records if len(one.steps) > 1]
    sizes = {max(map(len, one.steps)) for one in stepping if not _has_all_in_each(one)}
    if sizes:
        return sizes.pop() if len(sizes) == 1 else None
    least = max((max(map(len, one.steps)) for one in stepping), default=0)
    return least if least > stated else None


def _has_all_in_each(one: Recorded) -> bool:
    """Whether every step has all examples of the client."""
    different = {example.numpy().tobytes() for step in one.steps for example in step.inputs}
    return all(len(step) == len(different) for step in one.steps)


def _seen_in(one: Recorded) -> dict[str, Any]:
    """Terms that one round of one client shows."""
    seen: dict[str, Any] = {}
    # Epochs: how often an example returns, where all return equally often.
    examples = [example.numpy().tobytes() for step in one.steps for example in step.inputs]
    times = {examples.count(example) for example in set(examples)} if len(examples) <= _COUNTED else set()
    if len(times) == 1:
        seen["local_epochs"] = times.pop()
    stepping = dict(one.stepping)
    if "unread" not in stepping:
        optimizer = stepping.get("optimizer")
        if isinstance(optimizer, dict):
            plain = {key: _value for key, _value in Optimizer().model_dump().items() if key in _PLAIN}
            seen |= {f"optimizer.{key}": value for key, value in {**plain, **optimizer}.items()}
        if isinstance(stepping.get("learning_rate"), float):
            seen["learning_rate"] = stepping["learning_rate"]
    if stepping.get("mode") == "training":
        seen["training.mode"] = "training"
    if isinstance(stepping.get("accumulate"), int):
        seen["training.accumulate"] = stepping["accumulate"]
    return seen


_PLAIN: Final = ("name", "momentum", "weight_decay")
_COUNTED: Final = 20_000
"""Largest number of examples of a round that are compared with each other."""


def _unread(records: Sequence[Recorded]) -> list[str]:
    return sorted({str(one.stepping["unread"]) for one in records if "unread" in one.stepping})


def _value_of(terms: Terms, key: str) -> Any:
    table, _, inner = key.partition(".")
    return getattr(getattr(terms, table), inner) if inner else getattr(terms, table)


def _steps(terms: Terms, examples: int) -> int:
    """The local steps behind an update, as a capture counts them."""
    return max(1, terms.steps(examples))


def _count_steps_again(capture: Path, before: Terms, after: Terms) -> None:
    """Steps behind updates that were computed from the terms follow them; reported ones stay."""
    place = capture / "transcript" / "rounds.jsonl"
    lines = read_index(place.parent)
    changed = False
    for line in lines:
        if line.get("message") == "update" and line.get("steps") == _steps(before, line["examples"]):
            changed = changed or line["steps"] != _steps(after, line["examples"])
            line["steps"] = _steps(after, line["examples"])
    if changed:
        write_jsonl(place, lines)


def _count_examples_again(capture: Path, terms: Terms, truth: Truth) -> str:
    """Correct counts of examples that are counts of batches, as test clients show; a sentence, or nothing."""
    place = capture / "transcript" / "rounds.jsonl"
    lines = read_index(place.parent)
    updates = [line for line in lines if line.get("message") == "update"]
    known = {(line["round"], line["client"]): line for line in updates}
    pairs = [(len(used.rows()), known[key]["examples"]) for key, used in truth.used.items() if key in known]
    batches = [math.ceil(examples / terms.batch_size) == said != examples for examples, said in pairs]
    if not batches or not all(batches):
        return ""
    for line in updates:
        used = truth.used.get((line["round"], line["client"]))
        said = line["examples"]
        line["examples"] = len(used.rows()) if used is not None else said * terms.batch_size
        line["steps"] = _steps(terms, line["examples"])
    write_jsonl(place, lines)
    examples, said = pairs[0]
    return (
        f"num-examples count batches: a test client that trained on {examples} examples reported {said}; "
        f"the others' are taken times {terms.batch_size}"
    )
