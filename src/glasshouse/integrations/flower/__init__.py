"""Flower: capture a running federation, audit it, and guard its clients. Needs the extra ``flower``."""

from glasshouse.errors import not_installed

try:
    import flwr.serverapp  # noqa: F401 — there since 1.21, on which the adapter is built
except ImportError as error:
    raise not_installed(
        "capture of a Flower federation", "flwr, 1.21 or newer", error, extra="flower"
    ) from error

from glasshouse.integrations.documents import Documents
from glasshouse.integrations.flower.capture import capture, watch
from glasshouse.integrations.flower.guard import GuardedClientApp, guard_mod, guarded
from glasshouse.integrations.flower.preflight import preflight_mod
from glasshouse.integrations.flower.truth import truth_mod
from glasshouse.integrations.layout import Layout
from glasshouse.integrations.watching import used

__all__ = [
    "Documents",
    "GuardedClientApp",
    "Layout",
    "capture",
    "guard_mod",
    "guarded",
    "preflight_mod",
    "truth_mod",
    "used",
    "watch",
]
