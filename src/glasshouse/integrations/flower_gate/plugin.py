"""The gate for Flower, as ``glasshouse list gates`` knows it; what it needs is imported when it starts."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Final, final

from glasshouse.errors import BadValue
from glasshouse.gate.policy import Policy
from glasshouse.registry import Card

_PROCESS: Final = "glasshouse.integrations.flower_gate.run"


@final
@dataclass(frozen=True, kw_only=True)
class FlowerGate:
    """The gate between SuperNodes and a SuperLink of Flower 1.40 or newer.

    Attributes:
        listen: ``HOST:PORT`` at which nodes find the gate.
        to: ``HOST:PORT`` of the SuperLink.
        certificate: PEM file with the gate's certificate and key, for nodes.
        root_certificates: PEM file of the authorities that the SuperLink's certificate is checked with; None:
            those of this machine.
        insecure: no TLS on either side; only for loopback addresses.
    """

    card: ClassVar[Card] = Card(
        summary="a proxy between a site's SuperNodes and their SuperLink, in a process of its own",
        extra="flower",
    )

    listen: str = "127.0.0.1:9192"
    to: str = ""
    certificate: Path | None = None
    root_certificates: Path | None = None
    insecure: bool = False

    def run(self, policy: Policy, *, observe: bool = False) -> None:
        """Serve until interrupted.

        Args:
            policy: of the site.
            observe: only write what would have been done.
        """
        import_module(_PROCESS).serve(self, policy, observe=observe)

    def install(self, site: Path, policy: Path, *, observe: bool, check: bool) -> tuple[bool, str]:
        """Refuse: this gate is a process of its own.

        Raises:
            BadValue: always.
        """
        del site, policy, observe, check
        raise BadValue(
            "glasshouse gate install", needs="a gate that stands in a framework's own files", got="flower",
            fix="glasshouse gate run; or --framework nvflare",
        )  # fmt: skip
