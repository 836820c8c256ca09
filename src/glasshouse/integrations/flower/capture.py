"""Capture of a Flower server's view, by one line around a ``ServerApp``.

Everything that a server sends and receives passes through its ``Grid``, for any strategy, in simulations and
deployments alike. :func:`capture` inserts a grid that writes a transcript (docs/transcript.md), message by
message. Only the sum that secure aggregation reveals is computed above the grid, in the strategy, where
:func:`watch` records it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.common import FitRes, Parameters, Scalar
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from flwr.serverapp import Grid, ServerApp

from glasshouse.integrations.declared import (
    Model,
    Pixels,
    architecture_of,
    check_known,
    start,
)
from glasshouse.integrations.documents import Documents
from glasshouse.integrations.flower import records
from glasshouse.integrations.layout import Layout
from glasshouse.integrations.recording import Node, Recording
from glasshouse.models import build as models
from glasshouse.transcript.record import Keep


def capture(  # noqa: PLR0913 - the only line that an operator writes
    app: ServerApp,
    folder: str | Path,
    *,
    model: Model | Documents,
    normalize: Pixels | None = None,
    terms: Mapping[str, Any] | None = None,
    keep: Keep | None = None,
    most_bytes: int | None = None,
    layout: Layout | None = None,
) -> ServerApp:
    """``app``, with its server's view written to ``folder`` while it runs.

    Args:
        app: of the Message API, with ``server_fn``, or with a workflow (secure sums need :func:`watch` too).
        folder: new or empty; receives ``transcript/`` and ``nodes.json``, which maps nodes to clients.
        model: the network that the clients train: its class (or a function that builds it, or the name of a
            registered one), the shape (C, H, W) of its pictures (or another modality), and the number of
            classes (or another task).
            Of an app without a network: what it sends, boosted trees, follow-up times or statistics, in
            training or as answers to queries.
        normalize: mean and standard deviation with which the clients normalise pixels in [0, 1] before they
            enter the network; None: they do not, or the network does it itself.
        terms: fields of :class:`glasshouse.wire.Terms` about the clients' local training: ``batch_size``,
            ``local_epochs``, ``learning_rate``, ``optimizer``, ``training``. Missing ones are read from the
            run's configuration and from the configurations that the server sends (``batch-size``, ``lr``,
            ``momentum``, ...), then from test clients; what nobody says is assumed, and marked so in
            ``origins.json``. The number of clients, and whether sums are secure, is observed.
        keep: what to store; None: everything.
        most_bytes: maximum size of stored tensors; recording stops there, the federation continues. None:
            ``GLASSHOUSE_MOST_CAPTURE_BYTES``, else half of what is free on the disk.
        layout: where the arrays of an app in another framework (JAX, TensorFlow) belong in ``model``, its
            network written in torch; None: the app trains with torch.

    Raises:
        BadValue: the model or the terms are inconsistent.
        BadFile: ``folder`` contains a capture.
    """
    sends = model if isinstance(model, Documents) else None
    architecture = model.architecture if isinstance(model, Documents) else architecture_of(model, normalize)
    models.build(architecture)  # what cannot be built is said before the run
    declared = dict(terms or {})
    check_known(declared)

    captured = ServerApp()

    @captured.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        known = declared if sends is None else {**sends.terms(config), **declared}
        recording = start(
            folder, architecture, known, config=config, keep=keep, most_bytes=most_bytes,
            documents=sends is not None,
        )  # fmt: skip
        recording.layout = layout
        try:
            app(CapturingGrid(grid, recording, sends), context)
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

    def __init__(self, grid: Grid, recording: Recording, sends: Documents | None = None) -> None:
        self._inner = grid
        self.recording = recording
        self._sends = sends

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
        self._ask(batch)
        return self._inner.push_messages(batch)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As of the grid; recorded."""
        received = list(self._inner.pull_messages(message_ids))
        self._hear(received)
        return received

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As of the grid; recorded."""
        batch = list(messages)
        self._ask(batch)
        received = list(self._inner.send_and_receive(batch, timeout=timeout))
        self._hear(received)
        return received

    def _ask(self, messages: Iterable[Message]) -> None:
        messages, sends = list(messages), self._sends
        self.recording.asked(filter(None, (records.instruction_of(m, sends) for m in messages)))
        if sends is not None and sends.told:
            self.recording.answered(filter(None, (records.told_of(m, sends) for m in messages)))

    def _hear(self, messages: Iterable[Message]) -> None:
        self.recording.answered(filter(None, (records.reply_of(m, self._sends) for m in messages)))


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
        examples: dict[Node, int] = {int(proxy.cid): result.num_examples for proxy, result in results}
        if results:
            self._recording.summed(
                server_round - 1, examples, records.tensors_of(_record(results[0][1].parameters))
            )
        return self._inner.aggregate_fit(server_round, results, failures)

    initialize_parameters = _forwarded("initialize_parameters")
    configure_fit = _forwarded("configure_fit")
    configure_evaluate = _forwarded("configure_evaluate")
    aggregate_evaluate = _forwarded("aggregate_evaluate")
    evaluate = _forwarded("evaluate")


def _record(parameters: Parameters) -> ArrayRecord:
    arrays = (Array(dtype="", shape=(), stype=parameters.tensor_type, data=t) for t in parameters.tensors)
    return ArrayRecord({str(i): array for i, array in enumerate(arrays)})
