"""Client-side checks of SecAgg+ terms under which a server could unmask a single client's update.

A client's update remains hidden in a sum as long as nobody learns both of its secrets (the seed of its own
mask and the key of the masks that it shares with its neighbours), and the sum is of several clients. The
protocol's client checks little of that (Bonawitz et al. 2017, section 6, needs a consistency check against an
active server). What a client cannot see from its own messages is not checked here either: the identity of
its neighbours (keys are not signed), and the messages to other clients.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from glasshouse.integrations.flower.records import COUNTS, round_of

FEWEST: Final = 3
"""Minimum clients in a sum: of two, each can subtract its own update, and so can a server that runs one."""
_MEMORY: Final = "glasshouse_secure_terms"


def broken_term(message: Message, context: Context) -> str:
    """What is wrong with a SecAgg+ instruction, in a sentence; empty: nothing.

    The instructions of earlier stages are stored in ``context``.

    Args:
        message: to a client, of any stage.
        context: of the client's node.
    """
    configs = message.content.config_records[RECORD_KEY_CONFIGS]
    memory = _memory(context)
    stage, number = str(configs.get(Key.STAGE)), round_of(message) or 0
    if number < memory.get("round", number):
        return "the round is over"
    if memory.get("round") != number:
        memory.clear()
        memory["round"] = number
    stages = memory.get("stages", [])
    if stage in stages:
        return f"the stage '{stage}' was asked for twice in one round"
    memory["stages"] = [*stages, stage]
    check = {
        Stage.SETUP: _setup,
        Stage.SHARE_KEYS: _share_keys,
        Stage.COLLECT_MASKED_VECTORS: _collect,
        Stage.UNMASK: _unmask,
    }.get(stage)
    return "an unknown stage" if check is None else check(configs, memory, message.metadata.dst_node_id)


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


def _setup(configs: Mapping[str, Any], memory: dict[str, Any], own: int) -> str:
    del own
    clients, shares, threshold = (
        int(configs.get(name, 0)) for name in (Key.SAMPLE_NUMBER, Key.SHARE_NUMBER, Key.THRESHOLD)
    )
    memory["threshold"] = threshold
    if min(clients, shares) < FEWEST:
        return f"the sum is of {min(clients, shares)} clients, fewer than {FEWEST}"
    if 2 * threshold <= shares:
        return f"{threshold} of {shares} shares unlock a secret: at most half"
    return ""


def _share_keys(configs: Mapping[str, Any], memory: dict[str, Any], own: int) -> str:
    keys = {int(name): list(value) for name, value in configs.items() if name != Key.STAGE}
    memory["neighbours"] = sorted(keys)
    if keys.get(own) != memory.get("own_keys"):
        return "the keys that are passed on as this client's are not its own"
    every = [key for both in keys.values() for key in both]
    if len(set(every)) < len(every):
        return "a key occurs twice: two neighbours are one"
    if len(keys) < max(FEWEST, memory.get("threshold", 0)):
        return f"a missing neighbour: keys of {len(keys)} clients, own included, are too few"
    return ""


def _collect(configs: Mapping[str, Any], memory: dict[str, Any], own: int) -> str:
    sources = [int(node) for node in configs.get(Key.SOURCE_LIST, [])]
    memory["sources"] = sorted({*sources, own})
    if len({*sources, own}) < max(FEWEST, memory.get("threshold", 0)):
        return f"a missing neighbour: shares of {len(set(sources))} others are too few"
    if strangers := set(sources) - set(memory.get("neighbours", [])):
        return f"shares of {len(strangers)} clients whose keys were never passed on"
    return ""


def _unmask(configs: Mapping[str, Any], memory: dict[str, Any], own: int) -> str:
    active = set(configs.get(Key.ACTIVE_NODE_ID_LIST, []))
    dropouts = set(configs.get(Key.DEAD_NODE_ID_LIST, []))
    expected = set(memory.get("sources", [])) | {own}
    if both := active & dropouts:
        return f"{len(both)} clients are named as active and as dropped out"
    if own in dropouts:
        return "this client is named as dropped out, although it answered"
    if missing := expected - active - dropouts:
        return f"a missing neighbour: {len(missing)} clients of the sum are named neither way"
    if len(active) < max(FEWEST, memory.get("threshold", 0)):
        return f"the sum is of {len(active)} clients: too few"
    return ""
