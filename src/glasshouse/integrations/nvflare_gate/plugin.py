"""The gate for NVIDIA FLARE, as ``glasshouse list gates`` knows it; it is installed in a site, not run."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Final, final

from glasshouse.errors import BadValue
from glasshouse.gate.policy import Policy
from glasshouse.registry import Card

_INSTALL: Final = "glasshouse.integrations.nvflare.install"


@final
@dataclass(frozen=True, kw_only=True)
class NvflareGate:
    """A FLARE site's own filters, launcher and rights on the gate's policy.

    Attributes:
        in_process: let uploaded scripts run in the process of the site's filters (grade C).
    """

    card: ClassVar[Card] = Card(
        summary="filters, launcher and rights of a FLARE site, by glasshouse gate install",
        extra="nvflare",
    )

    in_process: bool = False

    def run(self, policy: Policy, *, observe: bool = False) -> None:
        """Refuse: FLARE's own processes are what runs.

        Raises:
            BadValue: always.
        """
        del policy, observe
        raise BadValue(
            "glasshouse gate run", needs="a gate that is a process of its own", got="nvflare",
            fix="glasshouse gate install SITE_FOLDER --framework nvflare",
        )  # fmt: skip

    def install(self, site: Path, policy: Path, *, observe: bool, check: bool) -> tuple[bool, str]:
        """Write the site's files, or compare them; whether one differed, and what to say.

        Args:
            site: folder with ``local`` and ``startup``.
            policy: of the site.
            observe: the filters only write what they would have done.
            check: write nothing.
        """
        done: tuple[bool, str] = import_module(_INSTALL).install(
            site, policy, in_process=self.in_process, observe=observe, check=check
        )
        return done
