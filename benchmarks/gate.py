"""What the gate costs: judging and encoding one message, in CPU milliseconds and memory.

``python -m benchmarks.gate`` prints medians of 20 messages of 1.6 and 25 million numbers, stage by stage.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.gate.apart.bench import Bench
from glasshouse.gate.apart.spool import Spool
from glasshouse.gate.judge import judge
from glasshouse.gate.ledger import Ledger
from glasshouse.gate.mechanism import privatize
from glasshouse.gate.message import Origin, Outgoing
from glasshouse.gate.policy import Mechanism, parse_policy
from glasshouse.gate.shelf import Shelf, lay
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import decode
from glasshouse.integrations.flower_gate.encoding import Parts, encode
from glasshouse.integrations.flower_gate.exchange import Answer, Gather, Pulled, Question
from glasshouse.integrations.flower_gate.objects import object_id
from glasshouse.integrations.flower_gate.opening import judged_answer, opener

SHAPES = {"1.6 M": [(512, 3072), (512,), (10, 512), (10,)], "25 M": [(2048, 3072)] * 4 + [(10, 2048)]}
POLICY = {"format": 1, "site": "bench", "dataset": "none", "out": {"norm": 1e9}}


def tensors(shapes: Sequence[tuple[int, ...]], seed: int) -> dict[str, Any]:
    """Random tensors of these shapes."""
    rng = np.random.default_rng(seed)
    return {f"t{i}": rng.standard_normal(s, dtype=np.float32) for i, s in enumerate(shapes)}


def timed(call: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[float, Any]:
    """CPU milliseconds of a call, and its result."""
    begin = time.process_time()
    result = call(*arguments, **more)
    return 1000 * (time.process_time() - begin), result


def measure(shapes: Sequence[tuple[int, ...]]) -> tuple[float, ...]:
    """CPU milliseconds of decoding, judging, encoding and noising one message."""
    received = tensors(shapes, 0)
    sent = {name: array + np.float32(1e-3) for name, array in received.items()}
    metadata = names.ProtoMessage().metadata
    encoded = encode(metadata, Parts(arrays=sent, order=("arrays",), array_record="arrays"))
    contents = {i: encoded.content(i) for i in (*encoded.small, *encoded.chunks)}
    decoding, decoded = timed(decode, encoded.root, contents, release=True)
    message = Outgoing(kind="train", origin=Origin(run="1", node="1"), arrays=decoded.arrays)
    judging, _ = timed(judge, parse_policy(POLICY), message, received, Ledger())
    parts = Parts(arrays=message.arrays, order=("arrays",), array_record="arrays")
    encoding, _ = timed(encode, metadata, parts)
    rule = Mechanism(clip=1.0, noise_multiplier=1.0, epsilon=1e6)
    noising, _ = timed(privatize, message.arrays, received, rule=rule, norm=2.0)
    return decoding, judging, encoding, noising


def measure_apart(shapes: Sequence[tuple[int, ...]], folder: Path) -> tuple[float, float]:
    """CPU milliseconds of a whole answer: in the gate, and in the process that opens it."""
    received = tensors(shapes, 0)
    sent = {name: array + np.float32(1e-3) for name, array in received.items()}
    metadata = names.ProtoMessage().metadata
    metadata.message_type = "train"
    encoded = encode(metadata, Parts(arrays=sent, order=("arrays",), array_record="arrays"))
    shelved, contents, target = Spool.inside(folder), Spool.inside(folder), Spool.inside(folder)
    pulled = Pulled(metadata=metadata, app="", root="", wanted=set(), contents=contents)
    pulled.shelf = Shelf(spool=shelved, forms=lay(received, shelved))
    answer = Answer(question=Question(metadata=metadata, app=""), root=encoded.root, wanted=set())
    gather = Gather(
        pulled=pulled, proto=encoded.proto, tree=encoded.tree, answer=answer, contents=contents, ends=0.0
    )
    objects = {i: encoded.content(i) for i in (*encoded.small, *encoded.chunks)}
    answer.wanted |= objects.keys()
    bench = Bench(policy=parse_policy(POLICY), ledger=Ledger())
    before = opener().processor, forked(opener().pid)

    def whole() -> None:
        """From the first object's arrival to the last one's departure."""
        for identity, content in objects.items():
            if object_id(content) == identity:
                contents[identity] = content
        payload = judged_answer(bench, gather, target).payload
        if payload is None:
            raise RuntimeError("refused")
        for identity in payload.content.small:
            payload.content.content(identity)

    here, _ = timed(whole)
    there = opener().processor - before[0] + forked(opener().pid) - before[1]
    return here, 1000 * there


def forked(pid: int) -> float:
    """CPU seconds of the process that forks, of its own."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(repeats: int) -> None:
    """Print the table."""
    print(f"CPU ms, medians of {repeats}\nnumbers    decode    judge   encode    noise")
    for name, shapes in SHAPES.items():
        rows = [measure(shapes) for _ in range(repeats)]
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{name:8} " + " ".join(f"{value:8.1f}" for value in medians), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        measure_apart(SHAPES["1.6 M"], Path(folder))  # starts the process
        for name, shapes in SHAPES.items():
            pairs = [measure_apart(shapes, Path(folder)) for _ in range(repeats)]
            here, there = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{name:8} whole answer: {here:.1f} in the gate, {there:.1f} in the process that opens it")
    print(f"largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    main(parser.parse_args().repeats)
