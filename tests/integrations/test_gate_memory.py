"""Memory of the gate for one large message, from its last object to its first one sent."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
SCRIPT = """
import gc, sys, tempfile
from pathlib import Path
import numpy as np
from glasshouse.gate.arrivals import Arrival, refuse_arrival
from glasshouse.gate.judge import judge
from glasshouse.gate.ledger import Ledger
from glasshouse.gate.message import Origin, Outgoing
from glasshouse.gate.policy import parse_policy
from glasshouse.gate.shelf import shelve
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import decode
from glasshouse.integrations.flower_gate.encoding import Parts, encode
from glasshouse.gate.apart.opener import return_freed_memory

def memory(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024

def contents_of(seed, size):
    arrays, rng = {}, np.random.default_rng(seed)
    for number in range(size // 2**26):
        arrays[f"layer{number:03}"] = rng.standard_normal((4096, 4096), dtype=np.float32)
    parts = Parts(arrays=arrays, order=("arrays",), array_record="arrays")
    encoded = encode(names.ProtoMessage().metadata, parts)
    contents = dict(encoded.small)
    for identity in list(encoded.chunks):
        contents[identity] = encoded.content(identity)
    return encoded.root, contents

return_freed_memory()
size, folder = int(sys.argv[1]), Path(tempfile.mkdtemp(dir=sys.argv[2]))
policy = parse_policy({"format": 1, "site": "s", "dataset": "d", "out": {"norm": 1e9},
                       "budget": {"largest": 2 * size, "bytes": 10 * size}}, folder=folder)
rest = memory("VmRSS")
root, contents = contents_of(0, size)
gc.collect()
Path("/proc/self/clear_refs").write_text("5")  # the largest size is counted anew from here
origin = Origin(run="1", node="1")
model = shelve(decode(root, contents, release=True).arrays, folder)
assert not refuse_arrival(policy, Arrival(kind="train", origin=origin, bytes=size), model, None)
contents.clear()
arriving = memory("VmHWM") - rest
waiting = memory("VmRSS") - rest
root, contents = contents_of(1, size)
gc.collect()
Path("/proc/self/clear_refs").write_text("5")
decoded = decode(root, contents, release=True)
contents.clear()
message = Outgoing(kind="train", origin=origin, arrays=decoded.arrays, bytes=size)
decision = judge(policy, message, model, Ledger())
assert decision.action == "passed", decision.reasons
encoded = encode(names.ProtoMessage().metadata,
                 Parts(arrays=decision.message.arrays, order=("arrays",), array_record="arrays"))
total = sum(len(encoded.content(identity)) for identity in (*encoded.small, *encoded.chunks))
assert total >= size
print(arriving / size, waiting / size, (memory("VmHWM") - rest) / size)
"""


@pytest.mark.parametrize("size", [2**28, 2**30], ids=["256MB", "1GiB"])
def test_a_large_message_is_judged_in_less_than_twice_its_size(tmp_path, size, capsys):
    command = [sys.executable, "-c", SCRIPT, str(size), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    arriving, waiting, judging = map(float, done.stdout.split())
    with capsys.disabled():
        said = f"arriving {arriving:.2f}, model waiting {waiting:.2f}, judged and encoded {judging:.2f}"
        print(f"\n{size / 2**20:.0f} MB: memory above rest, as multiples of the message: {said}")
    assert max(arriving, judging) < 1.5
    assert waiting < 0.2
