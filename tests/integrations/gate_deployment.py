"""A SuperLink, a gate and SuperNodes over the loopback, with a relay that keeps every byte that leaves."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from test_flower_run import BIN, CONFIG, free_port, kill, started, wait_for

import glasshouse
from glasshouse.gate.certificates import create_certificates

GLASSHOUSE = [sys.executable, "-c", "from glasshouse.cli import main; main()"]
APP = Path(__file__).parent / "gate_app"
POLICY = """
format = 1
site = "ward"
dataset = "test rows"

[out]
norm = 2.5
grid = 1e-4
fields = ["allowed"]

[out.examples]
least = 32
multiple = 32

[egress]
required = false
"""


def note_row(framework, deed, **facts):
    """Keep what became of a deed for the table of ``python -m benchmarks.hostile``, which names the file."""
    if place := os.environ.get("GLASSHOUSE_HOSTILE_TABLE"):
        with Path(place).open("a") as file:
            file.write(json.dumps({"framework": framework, "deed": deed, **facts}) + "\n")


class Relay:
    """Passes bytes on to a port and keeps those that go there, with their times."""

    def __init__(self, target):
        self.target, self.sent, self.pause, self.sockets = target, [], 0.0, []
        self.kept = 65536  # bytes of each piece that are kept
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            self.sockets.append(near)
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self.sockets.append(far)
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source, sink, keep):
        """One direction, to its end; then both are closed."""
        with suppress(OSError):
            while data := source.recv(2048 if self.pause else 65536):
                time.sleep(self.pause if keep else 0)
                if keep:
                    self.sent.append((time.time(), data[: self.kept]))
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self):
        """Take no more connections, and close those that are open."""
        self.server.close()
        for one in self.sockets:
            one.close()

    def since(self, begin, end=float("inf")):
        """All bytes that went to the target between two times."""
        return b"".join(data for when, data in self.sent if begin <= when < end)


class Deployment:
    """Processes of one test, in one folder."""

    def __init__(self, folder, *, policy=POLICY, nodes=1, observe=False, gated=True, tls=False):
        self.folder, self.policy, self.count = folder, policy, nodes
        self.observe, self.gated, self.tls = observe, gated, tls
        self.home = folder / "home"
        (self.home / "flwr").mkdir(parents=True)
        self.control = free_port()
        self.gate_port = free_port()
        config = CONFIG.format(port=self.control)
        if tls:
            authority = f'root-certificates = "{folder / "link/gate-ca.pem"}"'
            config = config.replace("insecure = true", authority)
        (self.home / "flwr/config.toml").write_text(config)
        self.environment = {
            **os.environ,
            "HOME": str(self.home),
            "FLWR_HOME": str(self.home / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(glasshouse.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        }
        self.site = folder / "site"
        self.site.mkdir()
        (self.site / "site.toml").write_text(policy)
        self.relay = Relay(self.control)
        self.stack = ExitStack()

    def __enter__(self):
        if self.tls:
            self.make_server_certificate()
        self.start_link()
        if self.gated:
            self.call("gate", "keys", "--policy", str(self.site / "site.toml"))
            self.start_gate()
        self.nodes = [self.start_node(number) for number in range(self.count)]
        activated = self.folder / "link.log"
        wait_for(
            lambda: activated.read_text().count("Activated node_id") >= self.count,
            seconds=120,
            what="nodes",
        )
        return self

    def __exit__(self, *error):
        self.stack.close()
        self.relay.close()

    def start(self, command, log):
        return self.stack.enter_context(started(command, self.folder / log, env=self.environment))

    def call(self, *arguments):
        command = [*GLASSHOUSE, *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)

    def make_server_certificate(self):
        """An authority and a certificate of the SuperLink's own, which the site's gate checks."""
        place = self.folder / "link"
        place.mkdir()
        _, both = create_certificates(place)
        text = both.read_text()
        key = text.index("-----BEGIN PRIVATE KEY")
        (place / "cert.pem").write_text(text[:key])
        (place / "key.pem").write_text(text[key:])

    def start_link(self):
        link = [str(BIN / "flower-superlink"), "--port", str(self.control)]
        link.append("--disable-runtime-dependency-installation")
        if self.tls:
            place = self.folder / "link"
            link += ["--ssl-ca-certfile", str(place / "gate-ca.pem")]
            link += ["--ssl-certfile", str(place / "cert.pem"), "--ssl-keyfile", str(place / "key.pem")]
        else:
            link.append("--insecure")
        self.link = self.start(link, "link.log")

    def start_gate(self):
        wait_for(lambda: _listens(self.control), seconds=60, what="the SuperLink")
        arguments = ["--listen", f"127.0.0.1:{self.gate_port}", "--to", f"127.0.0.1:{self.relay.port}"]
        more = ["--observe"] if self.observe else []
        if self.tls:
            more += ["--certificate", str(self.site / "gate-tls.pem")]
            more += ["--root-certificates", str(self.folder / "link/gate-ca.pem")]
        else:
            more.append("--insecure")
        command = [*GLASSHOUSE, "gate", "run", *arguments, *more]
        self.gate = self.start([*command, "--policy", str(self.site / "site.toml")], "gate.log")
        wait_for(lambda: _listens(self.gate_port), seconds=60, what="the gate")

    def start_node(self, number):
        target = self.gate_port if self.gated else self.relay.port
        wait_for(lambda: _listens(self.control), seconds=60, what="the SuperLink")
        safety = ["--root-certificates", str(self.site / "gate-ca.pem")] if self.tls else ["--insecure"]
        command = [str(BIN / "flower-supernode"), *safety, "--superlink", f"127.0.0.1:{target}"]
        command += ["--port", str(free_port()), "--node-config", f"partition-id={number}"]
        return self.start(command, f"node{number}.log")

    def run(self, deeds, *, seed=0, width=64, seconds=600, app=APP, timeout=60, meanwhile=None):
        """Run the app with these deeds; returns what its server wrote down."""
        out = self.folder / f"out{seed}"
        out.mkdir(exist_ok=True)
        config = f"deeds='{' '.join(deeds)}' seed={seed} out='{out}' nodes={self.count} "
        config += f"width={width} timeout={timeout}"
        command = [str(BIN / "flwr"), "run", str(app), "loopback", "--stream", "--run-config", config]
        with started(command, self.folder / f"run{seed}.log", env=self.environment) as process:
            if meanwhile is not None:
                meanwhile(self, out / "arrived.json")
            process.wait(timeout=seconds)
        return json.loads((out / "arrived.json").read_text())

    def log(self):
        """Entries of the gate's log."""
        lines = (self.site / "gate.jsonl").read_text().splitlines()
        return [json.loads(line)["entry"] for line in lines]


def _listens(port):
    with socket.socket() as one:
        one.settimeout(0.2)
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def deployed(folder, **settings):
    """A deployment that ends with the block."""
    with Deployment(folder, **settings) as deployment:
        yield deployment


__all__ = ["POLICY", "deployed", "kill"]
