"""A Ray cluster of this machine alone, in a process of its own; it ends with the block."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
import ray
cluster = ray.init(address="local", num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
print("address", cluster.address_info["address"], flush=True)
sys.stdin.read()
"""


@contextmanager
def local_cluster(cpus: int) -> Iterator[str]:
    """Its address."""
    command = [sys.executable, "-c", SCRIPT, str(cpus)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("address "))
        try:
            yield line.split()[1]
        finally:
            process.stdin.close()
            process.stdout.read()
