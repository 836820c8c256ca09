"""Start the proxy: TLS at both ends, the check of the network's rule, and the server."""

import ssl
import sys
from pathlib import Path
from typing import Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from glasshouse.errors import BadValue
from glasshouse.gate.apart.opener import return_freed_memory
from glasshouse.gate.desk import Desk
from glasshouse.gate.egress import check_egress
from glasshouse.gate.log import Log
from glasshouse.gate.policy import Policy
from glasshouse.integrations.flower_gate.plugin import FlowerGate
from glasshouse.integrations.flower_gate.proxy import Proxy

TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
LOCAL: Final = ("127.0.0.1", "::1", "localhost")


def serve(ends: FlowerGate, policy: Policy, *, observe: bool) -> None:
    """Serve until interrupted.

    Args:
        ends: what the gate stands between.
        policy: of the site.
        observe: only write what would have been done.

    Raises:
        BadValue: an address or certificate is missing, or the network's rule that the policy requires was
            not seen.
        BadFile: the log does not verify or is in use.
    """
    (host, port), (far_host, far_port) = _address(ends.listen, "--listen"), _address(ends.to, "--to")
    if ends.insecure and not (host in LOCAL and far_host in LOCAL):
        raise BadValue("the gate", needs="TLS beyond this machine", got="--insecure", fix="leave it out")
    if not ends.insecure and ends.certificate is None:
        fix = "--certificate FILE; glasshouse gate keys makes one"
        raise BadValue("the gate", needs="a certificate for its nodes", got="none", fix=fix)
    # Whether the wall around the gate stands is asked before anything is served, and written first.
    egress = check_egress(policy, (far_host, far_port), (host, port))
    log = Log(policy.folder / policy.log.file, policy.folder / policy.log.key)
    try:
        desk = Desk(policy, log, observe=observe)
        desk.note(
            "start",
            policy=policy.digest,
            site=policy.site,
            grade=egress.grade,
            egress=f"{egress.state}: {egress.sentence}",
            faults=list(egress.faults),
            observe=observe,
        )
        sys.stdout.write(f"gate of {policy.site}, grade {egress.grade} ({egress.state}: {egress.sentence})\n")
        sys.stdout.flush()
        if policy.egress.required and egress.grade != "A":
            raise BadValue(
                "the gate",
                needs="a rule of the network that lets only the gate talk to the server",
                got="; ".join([egress.sentence, *egress.faults]),
                fix=egress.fix or "set the rule (docs/gate.md), or [egress] required = false and grade B",
            )
        # From here on messages are judged.
        verify = False if ends.insecure else _authorities(ends.root_certificates)
        scheme = "http" if ends.insecure else "https"
        client = httpx.AsyncClient(
            base_url=f"{scheme}://{ends.to}", verify=verify, timeout=TIMEOUT, trust_env=False
        )
        return_freed_memory()
        _serve(Proxy(desk, client), host, port, certificate=None if ends.insecure else ends.certificate)
    finally:
        log.close()


def application(proxy: Proxy) -> Starlette:
    """The server's application: every path goes to the proxy, which knows the few that are allowed."""
    methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", proxy.answer, methods=methods)])


def _serve(proxy: Proxy, host: str, port: int, *, certificate: Path | None) -> None:
    config = uvicorn.Config(
        application(proxy),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=64,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        ssl_certfile=certificate,
    )
    uvicorn.Server(config).run()


def _authorities(path: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise BadValue(
            "option --root-certificates", needs="a PEM file", got=str(error), fix="name the authority's file"
        ) from error


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadValue(f"option {option}", needs="HOST:PORT", got=text, fix="such as 127.0.0.1:9192")
    return host.strip("[]"), int(port)
