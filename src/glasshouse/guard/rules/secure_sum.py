"""Terms of SecAgg+ under which a server could unmask a single client's update.

A client's update remains hidden in a sum as long as nobody learns both of its secrets (the seed of its own
mask and the key of the masks that it shares with its neighbours), and the sum is of several clients. The
protocol's client checks little of that (Bonawitz et al. 2017, section 6, needs a consistency check against an
active server). What a client cannot see from its own messages is not checked here either: the identity of
its neighbours (keys are not signed), and the messages to other clients.

Instructions and memory are plain mappings, named as Flower names them: the guard in an app reads them off
records, a site's gate off the wire.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

FEWEST: Final = 3
"""Minimum clients in a sum: of two, each can subtract its own update, and so can a server that runs one."""
SETUP, SHARE_KEYS, COLLECT, UNMASK = "setup", "share_keys", "collect_masked_vectors", "unmask"

Configs = Mapping[str, Any]
Memory = dict[str, Any]


def broken_term(configs: Configs, memory: Memory, *, own: int, number: int) -> str:
    """What is wrong with an instruction, in a sentence; empty: nothing.

    Args:
        configs: the instruction, of any stage.
        memory: of earlier instructions to this client; changed.
        own: the client's number.
        number: of the round.

    Examples:
        >>> few = {"stage": "setup", "sample_num": 2, "share_num": 2, "threshold": 2}
        >>> broken_term(few, {}, own=7, number=1)
        'the sum is of 2 clients, fewer than 3'
    """
    stage = str(configs.get("stage"))
    if number < memory.get("round", number):
        return "the round is over"
    if memory.get("round") != number:
        memory.clear()
        memory["round"] = number
    stages = memory.get("stages", [])
    if stage in stages:
        return f"the stage '{stage}' was asked for twice in one round"
    memory["stages"] = [*stages, stage]
    check = _CHECKS.get(stage)
    return "an unknown stage" if check is None else check(configs, memory, own)


def _setup(configs: Configs, memory: Memory, own: int) -> str:
    del own
    clients, shares, threshold = (int(configs.get(k, 0)) for k in ("sample_num", "share_num", "threshold"))
    memory["threshold"], memory["shares"] = threshold, shares
    memory["modulus"] = int(configs.get("mod_range", 0))
    if min(clients, shares) < FEWEST:
        return f"the sum is of {min(clients, shares)} clients, fewer than {FEWEST}"
    if 2 * threshold <= shares:
        return f"{threshold} of {shares} shares unlock a secret: at most half"
    return ""


def _share_keys(configs: Configs, memory: Memory, own: int) -> str:
    keys = {int(name): list(value) for name, value in configs.items() if name != "stage"}
    memory["neighbours"] = sorted(keys)
    if keys.get(own) != memory.get("own_keys"):
        return "the keys that are passed on as this client's are not its own"
    every = [key for both in keys.values() for key in both]
    if len(set(every)) < len(every):
        return "a key occurs twice: two neighbours are one"
    if len(keys) < max(FEWEST, memory.get("threshold", 0)):
        return f"a missing neighbour: keys of {len(keys)} clients, own included, are too few"
    return ""


def _collect(configs: Configs, memory: Memory, own: int) -> str:
    sources = [int(node) for node in configs.get("srcs", [])]
    memory["sources"] = sorted({*sources, own})
    if len({*sources, own}) < max(FEWEST, memory.get("threshold", 0)):
        return f"a missing neighbour: shares of {len(set(sources))} others are too few"
    if strangers := set(sources) - set(memory.get("neighbours", [])):
        return f"shares of {len(strangers)} clients whose keys were never passed on"
    return ""


def _unmask(configs: Configs, memory: Memory, own: int) -> str:
    active, dropouts = (list(configs.get(name, [])) for name in ("active_nids", "dead_nids"))
    memory["active"], memory["dead"] = active, dropouts
    expected = set(memory.get("sources", [])) | {own}
    if both := set(active) & set(dropouts):
        return f"{len(both)} clients are named as active and as dropped out"
    if own in dropouts:
        return "this client is named as dropped out, although it answered"
    if missing := expected - set(active) - set(dropouts):
        return f"a missing neighbour: {len(missing)} clients of the sum are named neither way"
    if len(set(active)) < max(FEWEST, memory.get("threshold", 0)):
        return f"the sum is of {len(set(active))} clients: too few"
    return ""


_CHECKS: Final[dict[str, Callable[[Configs, Memory, int], str]]] = {
    SETUP: _setup,
    SHARE_KEYS: _share_keys,
    COLLECT: _collect,
    UNMASK: _unmask,
}
