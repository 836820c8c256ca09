"""Capture of a FLARE job's server: what it sends to clients, and what they answer.

Two filters in the server's app see every task and every result, in the simulator, a POC deployment and in
production alike. They change nothing. Workflows between clients (swarm, cyclic, split learning) do not pass
the server, and are not seen.
"""

import hashlib
import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Final, final

from numpy.typing import NDArray

from glasshouse.errors import BadFile, BadValue
from glasshouse.formats.records import Statistic
from glasshouse.integrations.declared import Model, Pixels, architecture_of, check_known, start
from glasshouse.integrations.documents import Documents
from glasshouse.integrations.documents import Parts as Content
from glasshouse.integrations.nvflare.messages import WEIGHTS, Parts, client_of, take_apart
from glasshouse.integrations.nvflare.names import (
    EventType,
    Filter,
    FLContext,
    FLContextKey,
    ReturnCode,
    Shareable,
)
from glasshouse.integrations.recording import Instruction, Recording, Reply
from glasshouse.models import build as models
from glasshouse.outside import limits
from glasshouse.outside.schema import ArchitectureFile, parse_as
from glasshouse.transcript.described import architecture_of as described_architecture
from glasshouse.transcript.files import describe_architecture
from glasshouse.wire import Architecture, Stage, Terms, Value

_LOG = logging.getLogger(__name__)
TASKS: Final = ("train", "validate", "submit_model")
"""Tasks of FLARE's workflows for models. A filter must name tasks: ``*`` matches none."""
MESSAGES: Final = "messages.jsonl"
"""The file beside the transcript with one line a message, of every kind."""
PAYLOADS: Final = "payloads"
"""The folder with the bytes that messages contain, as trees and encoded statistics."""
_NOTICE: Final = Path(__file__).parent / "notice"
"""What a captured job brings with it, so that whoever opens the job learns of the capture."""
_STAGES: Final[Mapping[str, Stage]] = {"train": "train", "validate": "evaluate", "fed_stats": "query"}
_STATISTICS: Final[Mapping[str, Value]] = {"digits": 4, "filters": True}
"""FLARE's defaults for statistics: decimals, and filters that blur extremes and drop small counts."""
_ARGUMENTS: Final = {
    "batch_size": "batch_size",
    "batch": "batch_size",
    "epochs": "local_epochs",
    "local_epochs": "local_epochs",
    "num_epochs": "local_epochs",
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
}
"""Arguments of training scripts that are terms."""


@final
class Book:
    """Everything that was captured of one job, whichever filter saw it.

    Args:
        folder: new or empty.
        architecture: of the model; None: the job has none that a transcript could hold.
        declared: fields of the terms.
        sends: what the job sends in the place of a network's tensors; None: it trains one.
    """

    def __init__(
        self,
        folder: Path,
        architecture: Architecture | None,
        declared: Mapping[str, Any],
        sends: Documents | None = None,
    ) -> None:
        self._sends = sends
        self._folder = folder.expanduser()
        if (self._folder / MESSAGES).exists():
            raise BadFile(
                f"capture in '{folder}'", needs="a new folder", got="a capture", fix="choose another folder"
            )
        (self._folder / PAYLOADS).mkdir(parents=True)
        self._recording: Recording | None = None
        if architecture is not None:
            self._recording = start(folder, architecture, declared, documents=sends is not None)
        (self._folder / MESSAGES).touch()
        self._lock = Lock()
        self._known: set[str] = set()
        self._rounds: dict[tuple[str, str], int | None] = {}
        self._asked: dict[str, Mapping[str, NDArray[Any]]] = {}  # coefficients, at which sites' sums stand
        self._stated: dict[str, tuple[Statistic, ...]] = {}  # what sites have said of their columns so far
        self.seen = 0

    def task(self, task: str, client: str, parts: Parts) -> None:
        """Record what is sent to ``client``."""
        self._rounds[client, task] = parts.round
        self._write("task", task, client, parts, parts.round)
        stage = _STAGES.get(task)
        if self._recording is not None and stage is not None and self._sends is not None:
            self._asked[client] = parts.arrays
            self._recording.asked([_asks_for_document(client, stage, parts, self._sends)])
        elif self._recording is not None and stage is not None:
            model = parts.kind in WEIGHTS and bool(parts.arrays)
            one = Instruction(
                node=client,
                stage=stage,
                round=parts.round,
                load=parts.tensors if model else None,
                content=parts.digest() if model else None,
            )
            self._recording.asked([one])

    def result(self, task: str, client: str, parts: Parts) -> None:
        """Record what ``client`` answers."""
        self._write("result", task, client, parts, self._rounds.get((client, task)))
        stage = _STAGES.get(task)
        if self._recording is None or stage is None:
            return
        # A failure is an answer as well: the round has a drop-out, and is not waited for.
        if parts.code != ReturnCode.OK:
            self._recording.answered([Reply(node=client, stage=stage, error=parts.code)])
            return
        if self._sends is not None:
            self._recording.answered([self._answer_of(client, stage, parts, self._sends)])
            return
        model = parts.kind in WEIGHTS and bool(parts.arrays)
        kind = WEIGHTS.get(parts.kind, "parameters")
        reply = Reply(
            node=client,
            stage=stage,
            values=parts.values,
            load=parts.tensors if model else None,
            kind=kind,
            examples=_examples(parts.steps, self._recording.terms),
            steps=parts.steps,
        )
        self._recording.answered([reply])

    def _answer_of(self, client: str, stage: Stage, parts: Parts, sends: Documents) -> Reply:
        """What a site answers; what is no document stands as an error, by its parts."""
        try:
            # Statistics come in passes over the same rows: a site has said what it said before, too.
            said = (*self._stated.get(client, ()), *sends.numbers_of(parts.statistics))
            self._stated[client] = said
            content = Content(
                arrays=parts.arrays,
                payloads=parts.payloads,
                values=parts.values,
                asked=self._asked.get(client, {}),
                stated=said,
            )
            document, rows = sends.document(content)
            tensors = sends.tensors(document)
        except BadValue as error:
            return Reply(
                node=client, stage=stage, error=f"sent no document: needs {error.needs}; got {error.got}"
            )
        load = (lambda: tensors) if document else None
        return Reply(node=client, stage=stage, values=parts.values, load=load, kind="document", examples=rows)

    def close(self) -> None:
        """Record the drop-outs of the last round."""
        if self._recording is not None:
            self._recording.close()

    def _write(self, direction: str, task: str, client: str, parts: Parts, number: int | None) -> None:
        line: dict[str, object] = {
            "direction": direction,
            "task": task,
            "client": client,
            "round": number,
            "kind": parts.kind,
            "code": parts.code,
            "tensors": {name[: limits.TEXT]: list(array.shape) for name, array in parts.arrays.items()},
            "tensors_sha256": parts.digest() if parts.arrays else "",
            "values": dict(parts.values),
            "headers": dict(parts.headers),
        }
        with self._lock:
            self.seen += 1
            line["payloads"] = {name: self._store(payload) for name, payload in parts.payloads.items()}
            with (self._folder / MESSAGES).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _store(self, payload: bytes) -> str:
        """Name of the file with these bytes; equal bytes are stored once."""
        name = f"{hashlib.sha256(payload).hexdigest()}.bin"
        if name not in self._known:
            self._known.add(name)
            (self._folder / PAYLOADS / name).write_bytes(payload)
        return name


_BOOKS: Final[dict[str, Book]] = {}
"""The open captures of this process, by folder: both filters of a job write to one."""


class _Capture(Filter):
    """Shared by both directions: opens the book at the first message, closes it at the end of the job."""

    def __init__(
        self,
        folder: str,
        architecture: dict[str, Any] | None = None,
        terms: dict[str, Any] | None = None,
        sends: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # The Job API writes constructor arguments from attributes of the same names.
        self.folder = folder
        self.architecture = architecture
        self.terms = terms
        self.sends = sends

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Close the capture at the end of a run; a capture that saw nothing ends the job with an error."""
        if event_type == EventType.START_RUN:
            self._book()
        if event_type == EventType.ABOUT_TO_END_RUN and (book := _BOOKS.get(self.folder)) is not None:
            book.close()
            if not book.seen:
                self.system_panic(
                    "capture: no message was seen; name the tasks of this job's workflow", fl_ctx
                )

    def _book(self) -> Book:
        if self.folder not in _BOOKS:
            architecture = None if self.architecture is None else _read_architecture(self.architecture)
            sends = None if self.sends is None else Documents.over(architecture, **self.sends)
            _BOOKS[self.folder] = Book(Path(self.folder), architecture, self.terms or {}, sends)
        return _BOOKS[self.folder]


class CaptureTasks(_Capture):
    """Records what the server sends; among the server's ``task_data_filters``.

    Args:
        folder: new or empty, the same as that of :class:`CaptureResults`.
        architecture: as a transcript's ``terms.json`` describes it; None: no transcript, messages only.
        terms: as for :func:`capture`.
        sends: fields of ``Documents`` but its table, which is the architecture's; None: it trains a network.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The same message, recorded."""
        self._book().task(_task_of(fl_ctx), client_of(fl_ctx), take_apart(shareable))
        return shareable


class CaptureResults(_Capture):
    """Records what clients answer; among the server's ``task_result_filters``.

    Args:
        folder: new or empty, the same as that of :class:`CaptureTasks`.
        architecture: as a transcript's ``terms.json`` describes it; None: no transcript, messages only.
        terms: as for :func:`capture`.
        sends: fields of ``Documents`` but its table, which is the architecture's; None: it trains a network.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The same message, recorded."""
        self._book().result(_task_of(fl_ctx), client_of(fl_ctx), take_apart(shareable))
        return shareable


def capture(
    recipe: Any,  # FLARE's recipes share no typed base of their filters
    folder: str | Path,
    *,
    model: Model | Documents | None = None,
    normalize: Pixels | None = None,
    terms: Mapping[str, Any] | None = None,
    tasks: Sequence[str] = TASKS,
) -> None:
    """Add a capture to a recipe's server app: every task, every result.

    Args:
        recipe: any of FLARE's, before it is executed or exported.
        folder: on the server; new or empty. Receives ``messages.jsonl`` and ``payloads/``; with a model also
            ``transcript/`` and ``nodes.json``, which maps sites to clients.
        model: as for Flower's :func:`~glasshouse.integrations.flower.capture`, a network or, of a job of
            boosted trees, Newton steps or statistics,
            :class:`~glasshouse.integrations.documents.Documents`; None: messages only.
        normalize: mean and standard deviation with which clients normalise pixels.
        terms: fields of :class:`glasshouse.wire.Terms` about local training. Missing ones are read off the
            arguments of the training script (``--batch_size``, ``--epochs``, ``--lr``).
        tasks: names of the tasks of the job's workflow. FLARE takes ``*`` for a name.

    Raises:
        BadValue: the model cannot be built, a term is unknown, no batch size is stated, or a task is ``*``.
    """
    if "*" in tasks or not tasks:
        raise BadValue(
            "tasks of a capture", needs="names of tasks", got=", ".join(tasks) or "none",
            fix="name them: FLARE takes '*' for a name, and no message would be seen",
        )  # fmt: skip
    declared = {**terms_of_script(str(getattr(recipe, "train_args", "") or "")), **(terms or {})}
    check_known(declared)
    architecture, sends = None, None
    if isinstance(model, Documents):
        if model.protocol == "statistics":
            model = replace(model, options={**_STATISTICS, **model.options})
        architecture = json.loads(json.dumps(describe_architecture(model.architecture)))
        sends, table = dict(vars(model)), "table"
        del sends[table]  # the columns stand in the architecture
        declared = {**model.terms(options_of(recipe)), **(terms or {})}
    elif model is not None:
        built = architecture_of(model, normalize)
        models.build(built)  # what cannot be built is said before the job
        if "batch_size" not in declared:
            raise BadValue(
                "terms of a captured job",
                needs="the examples in a step of the clients' training",
                got="none",
                fix="say how clients train: terms={'batch_size': 32, 'local_epochs': 1}",
            )
        architecture = json.loads(json.dumps(describe_architecture(built)))  # as in the job's file
    place = str(Path(folder).expanduser().absolute())
    asked, answered = (kind(place, architecture, declared, sends) for kind in (CaptureTasks, CaptureResults))
    recipe.add_server_output_filter(asked, tasks=list(tasks))
    recipe.add_server_input_filter(answered, tasks=list(tasks))
    _fit_for_deployment(recipe)


def _fit_for_deployment(recipe: Any) -> None:
    """Keep the product's code out of the job, and bring a file of the job's own.

    FLARE copies a filter's module with all that it imports. Beside an installed package that is torch, too:
    40 MB, which no site unpacks in FLARE's ten seconds. Without any file of its own, the server's part of a
    job may build only what FLARE's list of classes allows, which a filter of another package is not.
    """
    job = getattr(getattr(recipe, "_job", None), "job", None)
    if job is not None:
        package = __name__.partition(".")[0]
        job.set_app_packages([*job.app_packages, package])
        recipe.add_server_file(str(_NOTICE))


def options_of(recipe: Any) -> dict[str, object]:
    """The settings of boosting of a recipe for trees, as its clients use them.

    In bagging of equal clients FLARE divides the learning rate by their number.
    """
    known = {
        "max_depth": getattr(recipe, "max_depth", None),
        "subsample": getattr(recipe, "local_subsample", None),
        "local_epochs": getattr(recipe, "num_local_parallel_tree", None),
    }
    rate = getattr(recipe, "learning_rate", None)
    if rate is not None and getattr(recipe, "lr_mode", "") == "uniform":
        bagging = getattr(recipe, "training_mode", "") == "bagging"
        known["eta"] = rate / recipe.num_client_bagging if bagging else rate
    return {name: value for name, value in known.items() if value is not None}


def terms_of_script(arguments: str) -> dict[str, float]:
    """The terms among a training script's arguments.

    Examples:
        >>> terms_of_script("--epochs 2 --batch_size=32 --data /tmp --lr 0.1")
        {'local_epochs': 2, 'batch_size': 32, 'learning_rate': 0.1}
    """
    words = shlex.split(arguments.replace("=", " "))
    found: dict[str, float] = {}
    for flag, value in pairwise(words):
        term = _ARGUMENTS.get(flag.lstrip("-").replace("-", "_")) if flag.startswith("--") else None
        if term is None:
            continue
        try:
            found[term] = float(value) if term == "learning_rate" else int(value)
        except ValueError:
            continue
    return found


def _asks_for_document(client: str, stage: Stage, parts: Parts, sends: Documents) -> Instruction:
    """What the server sends; trees of several sites are one document. What does not fit is not stored."""
    document, tensors = b"", None
    try:
        document, _ = sends.document(Content(arrays=parts.arrays, payloads=parts.payloads))
        tensors = sends.tensors(document)
    except BadValue as error:
        _LOG.warning("capture: a broadcast is not stored: needs %s; got %s", error.needs, error.got)
    return Instruction(
        node=client,
        stage=stage,
        round=parts.round,
        load=None if tensors is None else (lambda: tensors),
        content=document,
    )


def _task_of(context: FLContext) -> str:
    return str(context.get_prop(FLContextKey.TASK_NAME, ""))


def _examples(steps: int | None, terms: Terms) -> int:
    """Examples behind so many steps, at most: FLARE sends steps alone, and weights updates by them."""
    return 0 if steps is None else steps * terms.batch_size // terms.local_epochs


def _read_architecture(described: Mapping[str, Any]) -> Architecture:
    """The architecture that the job's configuration describes; its factory is the operator's own."""
    subject = "architecture of a captured job"
    fix = "describe it as a transcript's terms.json does: name, inputs, task, arguments"
    stated = parse_as(ArchitectureFile, dict(described), subject=subject, fix=fix)
    return described_architecture(stated, subject=subject, trust_factory=True)
