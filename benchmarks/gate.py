"""What the gate costs: judging and encoding one message, in CPU milliseconds and memory.

``python -m benchmarks.gate`` prints medians of 20 messages for 1.6 and 25 million numbers, each stage by itself.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from glasshouse.gate.judge import judge
from glasshouse.gate.ledger import Ledger
from glasshouse.gate.mechanism import privatize
from glasshouse.gate.message import Origin, Outgoing
from glasshouse.gate.policy import Mechanism, parse_policy
from glasshouse.integrations.flower.gate import names
from glasshouse.integrations.flower.gate.objects import Parts, decode, encode

SHAPES = {"1.6 M": [(512, 3072), (512,), (10, 512), (10,)], "25 M": [(2048, 3072)] * 4 + [(10, 2048)]}
POLICY = {"format": 1, "site": "bench", "dataset": "none", "out": {"norm": 1e9}}


def tensors(shapes, seed):
    rng = np.random.default_rng(seed)
    return {f"t{i}": rng.standard_normal(s, dtype=np.float32) for i, s in enumerate(shapes)}


def timed(call: Callable[[], object]) -> tuple[float, object]:
    begin = time.process_time()
    result = call()
    return 1000 * (time.process_time() - begin), result


def main(repeats):
    print(
        f"{'numbers':8} {'decode':>8} {'judge':>8} {'encode':>8} {'noise':>8}   CPU ms, medians of {repeats}"
    )
    for name, shapes in SHAPES.items():
        received = tensors(shapes, 0)
        sent = {k: v + np.float32(1e-3) for k, v in received.items()}
        policy = parse_policy(POLICY)
        metadata = names.ProtoMessage().metadata
        rows = []
        for _ in range(repeats):
            encoded = encode(metadata, Parts(arrays=sent, order=("arrays",), array_record="arrays"))
            contents = {i: encoded.content(i) for i in (*encoded.small, *encoded.chunks)}
            decoding, decoded = timed(lambda e=encoded, c=contents: decode(e.root, c, release=True))
            message = Outgoing(kind="train", origin=Origin(run="1", node="1"), arrays=decoded.arrays)
            judging, _ = timed(lambda m=message: judge(policy, m, received, Ledger()))
            parts = Parts(arrays=message.arrays, order=("arrays",), array_record="arrays")
            encoding, _ = timed(lambda p=parts: encode(metadata, p))
            rule = Mechanism(clip=1.0, noise_multiplier=1.0, epsilon=1e6)
            noising, _ = timed(lambda m=message: privatize(m.arrays, received, rule=rule, norm=2.0))
            rows.append((decoding, judging, encoding, noising))
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{name:8} " + " ".join(f"{value:8.1f}" for value in medians), flush=True)
    print(f"largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    main(parser.parse_args().repeats)
