"""Client-side checks of SecAgg+: its terms, and what travels in clear beside a masked update.

The terms themselves are in :mod:`glasshouse.guard.rules.secure_sum`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

from glasshouse.guard.rules import secure_sum
from glasshouse.integrations.flower.records import COUNTS, round_of

_MEMORY: Final = "glasshouse_secure_terms"


def broken_term(message: Message, context: Context) -> str:
    """What is wrong with a SecAgg+ instruction, in a sentence; empty: nothing.

    The instructions of earlier stages are stored in ``context``.

    Args:
        message: to a client, of any stage.
        context: of the client's node.
    """
    configs = message.content.config_records[RECORD_KEY_CONFIGS]
    own, number = message.metadata.dst_node_id, round_of(message) or 0
    return secure_sum.broken_term(configs, _memory(context), own=own, number=number)


def _memory(context: Context) -> dict[str, Any]:
    """Instructions of earlier stages: a Flower record in the node's state."""
    records = context.state.config_records
    if _MEMORY not in records:
        records[_MEMORY] = ConfigRecord()
    return cast(dict[str, Any], records[_MEMORY])


def remember_keys(reply: Message, context: Context) -> None:
    """Store the public keys that the client itself sent, for later comparison."""
    configs: Mapping[str, Any] = reply.content.config_records.get(RECORD_KEY_CONFIGS, {})
    if Key.PUBLIC_KEY_1 in configs:
        _memory(context)["own_keys"] = [configs[Key.PUBLIC_KEY_1], configs[Key.PUBLIC_KEY_2]]


def is_in_sum(context: Context) -> bool:
    """Whether the node's updates are hidden in secure sums."""
    return _MEMORY in context.state.config_records


def hide_counts(reply: Message) -> list[str]:
    """Set example counts to 1, and return the names of the hidden values."""
    return _hide(reply.content.metric_records.values(), only_counts=True)


def hide_what_travels_in_clear(reply: Message) -> list[str]:
    """Remove metrics from ``reply``, set example counts to 1, and return the names of the hidden values.

    The true weight is part of the masked sum, whose mean is in every result of the round.
    """
    metrics = [r for name, r in reply.content.config_records.items() if name.endswith(".metrics")]
    return _hide([*reply.content.metric_records.values(), *metrics], only_counts=False)


def _hide(records: Iterable[object], *, only_counts: bool) -> list[str]:
    hidden: list[str] = []
    for record in records:
        values = cast(dict[str, Any], record)
        counts = {key: 1 for key in values if key in COUNTS}
        hidden += counts if only_counts else values
        if not only_counts:
            values.clear()
        values.update(counts)
    return hidden
