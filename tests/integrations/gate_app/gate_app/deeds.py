"""What the app does with its update: one honest way, and the hostile ones of docs/gate.md."""

from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

CLASSES = 10
COUNT = "num-examples"


def private_row(seed):
    """The row of data that must not leave: 64 bytes that occur nowhere else."""
    return np.random.default_rng(1000 + seed).bytes(64)


def start(width):
    """The first model."""
    rng = np.random.default_rng(0)
    return {
        "hidden.weight": (rng.standard_normal((width, 3 * width)) / 20).astype(np.float32),
        "hidden.bias": np.zeros(width, np.float32),
        "head.weight": (rng.standard_normal((CLASSES, width)) / 20).astype(np.float32),
        "batches": np.array(3, dtype=np.int64),
    }


def honest(received, seed, turn):
    """A change of norm .5, with a last layer as cross-entropy makes it."""
    rng = np.random.default_rng([seed, turn])
    arrays = {name: array.copy() for name, array in received.items()}
    for name in ("hidden.weight", "hidden.bias", "head.weight"):
        step = rng.standard_normal(arrays[name].shape)
        if name == "head.weight":
            step -= step.mean(0)
        arrays[name] += (0.25 * step / np.linalg.norm(step)).astype(np.float32)
    return arrays


def quiet(received, kind, turn):
    """An honest change: plain, a third of it (``clipped``), or with noise of 1e-3 (``noised``)."""
    rng = np.random.default_rng(turn)
    arrays = honest(received, turn, turn)
    if kind == "clipped":
        for name in ("hidden.weight", "head.weight"):
            arrays[name] = received[name] + (arrays[name] - received[name]) / 3
    if kind == "noised":
        for name in ("hidden.weight", "hidden.bias", "head.weight"):
            noise = 1e-3 * rng.standard_normal(arrays[name].shape)
            arrays[name] = (arrays[name] + noise).astype(np.float32)
    return arrays


def canary_sign(seed, turn):
    """The coin of one message: whether the canary is in it or its opposite is."""
    return int(np.random.default_rng([77, seed, turn]).choice([-1, 1]))


def canary_direction(shape):
    """The direction of all canaries, of norm 1."""
    direction = np.random.default_rng(5).standard_normal(shape)
    return direction / np.linalg.norm(direction)


def canary(received, seed, turn):
    """A change that says one bit as loudly as a clip of .5 lets it, and a speck that makes it another."""
    arrays = {name: array.copy() for name, array in received.items()}
    weight = received["hidden.weight"]
    arrays["hidden.weight"] += (canary_sign(seed, turn) * 0.5 * canary_direction(weight.shape)).astype(
        np.float32
    )
    arrays["hidden.bias"][0] += np.float32(1e-6 * (1 + seed + 64 * turn))
    return arrays


def as_floats(row, shape, dtype=np.float32):
    """The row's bytes as small floating numbers, repeated to a shape."""
    numbers = np.frombuffer(row, np.uint8).astype(np.float64) / 256 * 1e-3
    return np.resize(numbers, shape).astype(dtype)


def bits_of(row, size):
    """The row's bits, repeated."""
    return np.resize(np.unpackbits(np.frombuffer(row, np.uint8)), size)


@dataclass(kw_only=True)
class Act:
    """What an app hands in, whatever the framework: the deed in tensors, numbers and bytes."""

    arrays: dict
    metrics: dict
    documents: dict
    order: list
    record_name: str = "arrays"
    stype: str = ""


def act(deed, received, *, seed, turn):  # noqa: C901 — a list of deeds, one line or two each
    """An honest update with one deed done to it."""
    row = private_row(seed)
    made = Act(arrays=honest(received, seed, turn), metrics={COUNT: 64}, documents={}, order=list(received))
    arrays, metrics = made.arrays, made.metrics
    if deed == "norm":
        arrays["hidden.weight"] += 1
    elif deed == "loss":
        metrics["train_loss"] = float(as_floats(row, 1)[0])
    elif deed == "metric_list":
        metrics["row"] = [float(x) for x in as_floats(row, 64, np.float64)]
    elif deed == "exception":
        raise RuntimeError(row.hex())
    elif deed == "buffer":
        arrays["batches"] = np.array(np.frombuffer(row, np.int64)[0])
    elif deed == "extra_tensor":
        arrays["row"] = np.frombuffer(row, np.uint8).astype(np.float32)
        made.order.append("row")
    elif deed == "shape":
        arrays["hidden.bias"] = np.frombuffer(row, np.uint8).astype(np.float32)[:60]
    elif deed == "record_name":
        made.record_name = row.hex()
    elif deed == "tensor_name":
        arrays[row.hex()] = arrays.pop("hidden.bias")
        made.order[made.order.index("hidden.bias")] = row.hex()
    elif deed == "config_bytes":
        made.documents["row"] = row
    elif deed == "one_example":
        metrics[COUNT] = 1
    elif deed == "count":
        metrics[COUNT] = 64 + row[0] % 32
    elif deed == "count_digits":
        metrics[COUNT] = 32 * int.from_bytes(row[:7])
    elif deed == "many_faults":
        metrics |= dict.fromkeys(map("fault{}".format, range(40_000)), 1.0)
    elif deed == "float64":
        arrays["hidden.bias"] = as_floats(row, arrays["hidden.bias"].shape, np.float64)
    elif deed == "nan":
        words = np.resize(np.frombuffer(row, np.uint16), arrays["hidden.bias"].size).astype(np.uint32)
        arrays["hidden.bias"] = (words | np.uint32(0x7FC00000)).view(np.float32)
    elif deed == "denormal":
        words = np.resize(np.frombuffer(row, np.uint16), arrays["hidden.bias"].size).astype(np.uint32)
        arrays["hidden.bias"] = words.view(np.float32)
    elif deed == "minus_zero":
        signs = bits_of(row, arrays["hidden.bias"].size)
        arrays["hidden.bias"] = np.where(signs == 1, np.float32(-0.0), np.float32(0.0))
    elif deed == "low_bits":
        words = arrays["hidden.weight"].view(np.uint32)
        arrays["hidden.weight"] = (
            words & ~np.uint32(1) | bits_of(row, words.size).reshape(words.shape)
        ).view(np.float32)
    elif deed == "pieces":
        metrics["allowed"] = float(row[turn % 64])
    elif deed == "same_again":
        made.arrays = honest(received, seed, 0)
    elif deed == "noised":
        made.arrays = quiet(received, "noised", turn)
    elif deed == "canary":
        made.arrays = canary(received, seed, turn)
        metrics[COUNT] = 64 + 32 * seed  # tells the nodes apart
    elif deed == "order":
        made.order.reverse()
    elif deed == "stype":
        made.stype = row.hex()
    return made


def reply(deed, received, *, seed, turn):
    """The records of Flower that the app hands to its node."""
    made = act(deed, received, seed=seed, turn=turn)
    arrays = {name: Array(made.arrays[name].copy()) for name in made.order}
    if made.stype:
        arrays["hidden.bias"].stype = made.stype
    extra = {"config": ConfigRecord(made.documents)} if made.documents else {}
    return RecordDict({made.record_name: ArrayRecord(arrays), "metrics": MetricRecord(made.metrics), **extra})
