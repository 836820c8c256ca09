"""A server of FLARE and a site over the loopback, with a relay that keeps every byte that the site sends.

Both are provisioned as FLARE provisions them, without TLS, so that the relay can be searched.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from gate_deployment import GLASSHOUSE, Relay
from test_flower_run import free_port

import glasshouse

HERE = Path(__file__).parent
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
"""
PROJECT = """
api_version: 3
name: loopback
participants:
  - {{name: localhost, type: server, org: test, fed_learn_port: {port}, connection_security: clear}}
  - name: site-1
    type: client
    org: test
    connection_security: clear
    connect_to: {{host: localhost, port: {relay}, connection_security: clear}}
  - name: admin@test.org
    type: admin
    org: test
    role: project_admin
    connection_security: clear
    connect_to: {{host: localhost, port: {port}, connection_security: clear}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config, scheme: tcp}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""
EXECUTOR = "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor"
USER = "admin@test.org"


class Federation:
    """Processes of one test, in one folder.

    Args:
        folder: of the test.
        policy: of the site; empty: no gate is installed.
        in_process: let scripts run in the job's process (grade B).
    """

    def __init__(self, folder, *, policy=POLICY, in_process=False):
        self.folder, self.policy, self.in_process = folder, policy, in_process
        self.port = free_port()
        self.relay = Relay(self.port)
        self.environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "PYTHONPATH": str(Path(glasshouse.__file__).parents[1]),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        (folder / "marks").mkdir()
        self.site = folder / "site"
        self.stack = ExitStack()

    def __enter__(self):
        try:
            return self._begin()
        except BaseException:
            self.stack.close()
            raise

    def _begin(self):
        (self.folder / "home").mkdir()
        self.site.mkdir()
        self._provision()
        kits = self.folder / "ws" / "loopback" / "prod_00"
        self.server_kit, self.site_kit, self.admin_kit = (kits / n for n in ("localhost", "site-1", USER))
        # by default all servers of a machine share one store of jobs
        resources = self.server_kit / "local" / "resources.json.default"
        resources.write_text(resources.read_text().replace("/tmp/nvflare", str(self.folder / "store")))
        if self.policy:
            (self.site / "site.toml").write_text(self.policy)
            self.call("gate", "keys", "--policy", str(self.site / "site.toml"))
            self.install()
        self._start("server", self.server_kit)
        self.client = self._start("client", self.site_kit)
        self.admin("connected", "site-1")
        return self

    def __exit__(self, *error):
        self.stack.close()
        self.relay.close()

    def call(self, *arguments):
        command = [*GLASSHOUSE, *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)

    def admin(self, command, *arguments):
        """One command of the federation's administrator."""
        process = [sys.executable, str(HERE / "flare_admin.py"), command, str(self.admin_kit), *arguments]
        done = subprocess.run(process, env=self.environment, capture_output=True, text=True, check=False)
        answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        assert answers, done.stdout[-2000:] + done.stderr[-2000:]
        return json.loads(answers[-1].removeprefix("ANSWER "))

    def install(self):
        """The gate, as the site's administrator installs it."""
        more = ["--in-process"] if self.in_process else []
        policy = str(self.site / "site.toml")
        return self.call(
            "gate", "install", str(self.site_kit), "--framework", "nvflare", "--policy", policy, *more
        ).stdout

    def job(self, name, *, deeds=("honest",), client=None, width=64, seed=0, more=(), meta=None, place=None):
        """The folder of a job.

        Args:
            name: of the job.
            deeds: one a turn.
            client: parts of ``config_fed_client.json`` laid over the honest ones.
            width: of the model.
            seed: of the row.
            more: arguments of the script.
            meta: laid over the job's own ``meta.json``.
            place: files of the job's code by other paths below ``custom``.
        """
        folder = self.folder / "jobs" / name
        config, custom = folder / "app" / "config", folder / "app" / "custom"
        config.mkdir(parents=True)
        custom.mkdir()
        out = self.out(name)
        out.mkdir(parents=True)
        about = {"name": name, "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
        write(folder / "meta.json", {**about, **(meta or {})})
        arguments = {"turns": len(deeds), "out": str(out), "width": width}
        server = {"id": "turns", "path": "turns.Turns", "args": arguments}
        write(
            config / "config_fed_server.json", {"format_version": 2, "workflows": [server], "components": []}
        )
        command = [
            "python3",
            "-u",
            "custom/script.py",
            "--deeds",
            ",".join(deeds),
            "--seed",
            str(seed),
            *more,
        ]
        executor = {
            "path": EXECUTOR,
            "args": {"execution_mode": "external_process", "command": command, "heartbeat_timeout": 10.0},
        }
        honest = {
            "format_version": 2,
            "executors": [{"tasks": ["train"], "executor": executor}],
            "components": [],
            "task_data_filters": [],
            "task_result_filters": [],
        }
        write(config / "config_fed_client.json", {**honest, **(client or {})})
        for file in (HERE / "gate_app/gate_app/deeds.py", *(HERE / "flare_job").glob("*.py")):
            target = custom / (place or {}).get(file.name, file.name)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(file, target)
        return folder

    def out(self, name):
        """Where the server's side of a job writes."""
        return self.folder / "out" / name

    def run(self, name, *, seconds=180, **settings):
        """Make a job and run it to its end."""
        return self.submit(name, self.job(name, **settings), seconds=seconds)

    def submit(self, name, folder, *, seconds=180):
        """Run a job to its end; returns its status and what the server's code received, by turn."""
        begin = time.time()
        told = self.admin("run", str(folder), str(seconds))
        arrived = self.out(name) / "arrived.jsonl"
        lines = [json.loads(x) for x in arrived.read_text().splitlines()] if arrived.exists() else []
        return {**told, "lines": lines, "begin": begin, "end": time.time()}

    def log(self):
        """Entries of the site's log."""
        path = self.site / "gate.jsonl"
        return [json.loads(line)["entry"] for line in path.read_text().splitlines()] if path.exists() else []

    def _provision(self):
        project = self.folder / "project.yml"
        project.write_text(PROJECT.format(port=self.port, relay=self.relay.port))
        tool = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project)]
        command = [*tool, "-w", str(self.folder / "ws")]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def _start(self, side, kit):
        """The command of the kit's own ``sub_start.sh``, without the loop that starts it again."""
        module = f"nvflare.private.fed.app.{side}.{side}_train"
        uid = ["uid=site-1"] if side == "client" else []
        # uploaded code runs at the server as well; what is asked here is whether it ran at the site
        marked = {"GLASSHOUSE_TEST_MARK": str(self.folder / "marks")} if side == "client" else {}
        files = ["-m", str(kit), "-s", f"fed_{side}.json"]
        more = ["--set", "secure_train=true", *uid, "org=test", "config_folder=config"]
        with (self.folder / f"{side}.log").open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", module, *files, *more],
                stdout=out, stderr=out, env=self.environment | marked, start_new_session=True,
            )  # fmt: skip
        self.stack.callback(end_tree, process)
        return process


def write(path, table):
    path.write_text(json.dumps(table, indent=1))


def children(pid):
    """Processes below ``pid``, nearest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                one = int(stat.parent.name)
                found += [one, *children(one)]
    return found


def end_tree(process):
    """End a process that the test started, and all that it started."""
    for pid in [*children(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
