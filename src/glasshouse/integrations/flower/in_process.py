"""A federation of Flower apps in one process, without Ray, ports or waiting: for tests and measurements.

Messages are the same as in a deployment, but copied instead of serialised; nodes answer one after the other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, final
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_APP_FAILED = 2
"""Flower's code for a client app that raised."""


@final
@dataclass(kw_only=True)
class InProcessGrid(Grid):
    """A grid whose nodes each run a ``ClientApp`` as soon as a message is pushed.

    Args:
        apps: by node.
        configs: of the nodes (``context.node_config``), by node; ``partition-id`` and ``num-partitions`` are
            always set, as in Flower's simulations.
        run_config: of the app.
        offline: returns whether a node fails to answer a message; None: all answer.
    """

    apps: Mapping[int, ClientApp]
    configs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    run_config: Mapping[str, Any] = field(default_factory=dict)
    offline: Callable[[int, Message], bool] | None = None
    _contexts: dict[int, Context] = field(default_factory=dict)
    _replies: dict[str, Message] = field(default_factory=dict)
    _run: Run | None = None

    def __post_init__(self) -> None:
        for position, node in enumerate(self.apps):
            simulated = {"partition-id": position, "num-partitions": len(self.apps)}
            self._contexts[node] = Context(
                run_id=1,
                node_id=node,
                node_config={**simulated, **self.configs.get(node, {})},
                state=RecordDict(),
                run_config=dict(self.run_config),
            )

    def set_run(self, run: Run) -> None:
        """Store the run, which has no effect."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run; by default an empty one with number 1."""
        return self._run or Run.create_empty(1)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Sequence[int]:
        """All nodes."""
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Run each node's app, and store the replies until they are pulled."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The available replies."""
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push, then pull."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def _push(self, message: Message) -> str:
        identity, node = str(uuid4()), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = identity
        if self.offline is None or not self.offline(node, message):
            try:
                self._replies[identity] = self.apps[node](deepcopy(message), self._contexts[node])
            except Exception as error:  # noqa: BLE001 — whatever an app raises, Flower sends back as an error
                reason = f"{type(error).__name__}: {error}"
                self._replies[identity] = Message(Error(_APP_FAILED, reason), reply_to=message)
        return identity


def run_in_process(app: ServerApp, grid: InProcessGrid) -> None:
    """Run ``app`` on ``grid`` to completion."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(grid.run_config)
    )
    app(grid, context)
