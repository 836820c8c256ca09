"""Capture of a Flower server's view, by one line around a ``ServerApp``.

Everything that a server sends and receives passes through its ``Grid``, for any strategy, in simulations and
deployments alike. :func:`capture` inserts a grid that writes a transcript (docs/transcript.md), message by
message. Only the sum that secure aggregation reveals is computed above the grid, in the strategy, where
:func:`watch` records it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, final

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.common import FitRes, Parameters, Scalar
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from flwr.serverapp import Grid, ServerApp
from torch import nn

from glasshouse.errors import BadFile, BadValue
from glasshouse.integrations.flower.recording import Recording
from glasshouse.interfaces import stated_training
from glasshouse.modalities.base import Modality
from glasshouse.models import build as models
from glasshouse.outside.schema import freeze
from glasshouse.settings import NORMALISATION, Optimizer, Training
from glasshouse.tasks.base import Task
from glasshouse.transcript.record import Keep
from glasshouse.wire import Architecture, Terms

MOST_BYTES: Final = 20 * 2**30
"""Default maximum size of a capture: 20 GiB."""
_CONFIG: Final = ("batch-size", "local-epochs", "learning-rate")
"""Settings of a run that are terms, under the names used in the apps that ``flwr new`` generates."""

Pixels = tuple[float | Sequence[float], float | Sequence[float]]
Described = tuple[str | Callable[..., nn.Module], tuple[int, int, int] | Modality, int | Task]
"""The network, the (C, H, W) of its pictures or another modality, the number of classes or another task."""


def capture(
    app: ServerApp,
    folder: str | Path,
    *,
    model: Architecture | Described,
    normalize: Pixels | None = None,
    terms: Mapping[str, Any] | None = None,
    keep: Keep | None = None,
    most_bytes: int = MOST_BYTES,
) -> ServerApp:
    """``app``, with its server's view written to ``folder`` while it runs.

    Args:
        app: of the Message API, with ``server_fn``, or with a workflow (secure sums need :func:`watch` too).
        folder: new or empty; receives ``transcript/`` and ``nodes.json``, which maps nodes to clients.
        model: the network that the clients train: its class (or a function that builds it, or the name of a
            registered one), the shape (C, H, W) of its pictures (or another modality), and the number of
            classes (or another task).
        normalize: mean and standard deviation with which the clients normalise pixels in [0, 1] before they
            enter the network; None: they do not, or the network does it itself.
        terms: fields of :class:`glasshouse.wire.Terms` about the clients' local training: at least
            ``batch_size``; ``local_epochs``, ``learning_rate``, ``optimizer``. Missing ones are taken from
            ``batch-size``, ``local-epochs`` and ``learning-rate`` of the run's configuration, if present.
            They cannot be observed in messages; an audit checks them against the records of test clients.
            The number of clients, and whether sums are secure, is observed.
        keep: what to store; None: everything.
        most_bytes: maximum size of stored tensors; recording stops there, the federation continues.

    Raises:
        BadValue: the model or the terms are inconsistent; at the start of a run, no batch size is known.
        BadFile: ``folder`` contains a capture.
    """
    architecture = _architecture(model, normalize)
    network = models.build(architecture)
    declared = dict(terms or {})
    _check_known(declared)

    captured = ServerApp()

    @captured.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        configured = {name.replace("-", "_"): config[name] for name in _CONFIG if name in config}
        stated = _terms(architecture, {**configured, **declared})
        place = Path(folder).expanduser()
        if (place / "transcript").exists():
            raise BadFile(
                f"capture in '{place}'", needs="a new folder", got="a transcript", fix="choose another folder"
            )
        recording = Recording(
            folder=place, terms=stated, network=network, keep=keep or Keep(), most_bytes=most_bytes
        )
        try:
            app(CapturingGrid(grid, recording), context)
        finally:
            recording.close()

    return captured


def watch(strategy: Strategy, grid: Grid) -> Strategy:
    """``strategy``, with the sums that secure aggregation reveals to it recorded.

    Args:
        strategy: as given to ``LegacyContext`` for a ``SecAggPlusWorkflow``.
        grid: the one passed to ``main``; if it is not captured, ``strategy`` is returned unchanged.
    """
    return _WatchedStrategy(strategy, grid.recording) if isinstance(grid, CapturingGrid) else strategy


def _forwarded(name: str) -> Any:
    """A method that calls the method ``name`` of the object that this one wraps."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    return call


@final
class CapturingGrid(Grid):
    """A grid that records everything that passes through ``grid`` in a :class:`Recording`."""

    def __init__(self, grid: Grid, recording: Recording) -> None:
        self._inner = grid
        self.recording = recording

    def __getattr__(self, name: str) -> Any:
        """Forward further attributes, which differ between versions of Flower."""
        return getattr(self._inner, name)

    set_run = _forwarded("set_run")
    create_message = _forwarded("create_message")

    @property
    def run(self) -> Any:
        """As of the grid."""
        return self._inner.run

    def get_node_ids(self) -> Iterable[int]:
        """As of the grid; noted."""
        nodes = list(self._inner.get_node_ids())
        self.recording.available(nodes)
        return nodes

    def get_nodes(self) -> Iterable[Any]:
        """As of the grid; noted."""
        nodes = list(self._inner.get_nodes())
        self.recording.available(node.node_id for node in nodes)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As of the grid; recorded."""
        batch = list(messages)
        self.recording.asked(batch)
        return self._inner.push_messages(batch)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As of the grid; recorded."""
        received = list(self._inner.pull_messages(message_ids))
        self.recording.answered(received)
        return received

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As of the grid; recorded."""
        batch = list(messages)
        self.recording.asked(batch)
        received = list(self._inner.send_and_receive(batch, timeout=timeout))
        self.recording.answered(received)
        return received


@final
class _WatchedStrategy(Strategy):
    """A strategy that records the results it aggregates in a :class:`Recording`."""

    def __init__(self, strategy: Strategy, recording: Recording) -> None:
        self._inner = strategy
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        """Settings of the strategy itself."""
        return getattr(self._inner, name)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """As of the strategy. Under secure aggregation every result contains the mean of all."""
        examples = {int(proxy.cid): result.num_examples for proxy, result in results}
        if results:
            self._recording.summed(server_round - 1, examples, _record(results[0][1].parameters))
        return self._inner.aggregate_fit(server_round, results, failures)

    initialize_parameters = _forwarded("initialize_parameters")
    configure_fit = _forwarded("configure_fit")
    configure_evaluate = _forwarded("configure_evaluate")
    aggregate_evaluate = _forwarded("aggregate_evaluate")
    evaluate = _forwarded("evaluate")


def _record(parameters: Parameters) -> ArrayRecord:
    arrays = (Array(dtype="", shape=(), stype=parameters.tensor_type, data=t) for t in parameters.tensors)
    return ArrayRecord({str(i): array for i, array in enumerate(arrays)})


def _architecture(
    model: Architecture | Described,
    normalize: Pixels | None,
) -> Architecture:
    """The architecture from which an audit builds the network in another process.

    Raises:
        BadValue: another process cannot import the network, or mean or deviation differ between channels.
    """
    if isinstance(model, tuple):
        name = model[0] if isinstance(model[0], str) else _name_of(model[0])
        model = Architecture.of(name, model[1], model[2])
    if normalize is None:
        return model
    numbers = [set(one) if isinstance(one, Sequence) else {one} for one in normalize]
    if any(len(one) != 1 for one in numbers):
        raise BadValue(
            "normalize of a captured network",
            needs="one mean and one standard deviation for all channels",
            got=str(normalize),
            fix="give as model a function that returns glasshouse.adapt(network, normalize=(means, stds))",
        )
    outside = dict(zip(NORMALISATION, (float(one.pop()) for one in numbers), strict=True))
    return replace(model, arguments={**model.arguments, **outside})


def _name_of(factory: Callable[..., nn.Module]) -> str:
    """The name by which another process imports ``factory``."""
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module in ("", "__main__") or not name.isidentifier():
        raise BadValue(
            "network of a captured federation",
            needs="a class or function that an audit can import: at the top of a module",
            got=f"'{name or factory}' of '{module}'",
            fix="move it to a file of its own, and import it from there",
        )
    return f"{module}:{name}"


def _check_known(declared: Mapping[str, Any]) -> None:
    """Reject fields that terms do not have."""
    known = {f.name for f in fields(Terms)} - {"architecture", "sends", "secure_sum", "public"}
    if unknown := sorted(declared.keys() - known):
        raise _bad_terms(f"fields among {', '.join(sorted(known))}", ", ".join(unknown))


def _terms(model: Architecture, declared: Mapping[str, Any]) -> Terms:
    """Declared terms; the observed ones are filled in later.

    Raises:
        BadValue: the batch size is missing.
    """
    if "batch_size" not in declared:
        raise _bad_terms(
            "the examples in a step of the clients' training",
            "no batch_size in terms, and no batch-size in the run's configuration",
        )
    optimizer = Optimizer.model_validate(freeze(declared.get("optimizer", {})))
    training = Training.model_validate(freeze(declared.get("training", {})))
    terms = {"protocol": "fedavg", "clients": 1, "cohort": 1, **declared}
    training = stated_training(terms["protocol"], terms.get("options", {}), training)
    terms |= {"optimizer": optimizer, "training": training}
    return Terms(**terms, architecture=model, sends="parameters")


def _bad_terms(needs: str, got: str) -> BadValue:
    fix = "say how clients train: terms={'batch_size': 32, 'local_epochs': 1, 'learning_rate': 0.1}"
    return BadValue("terms of a captured Flower app", needs=needs, got=got, fix=fix)
