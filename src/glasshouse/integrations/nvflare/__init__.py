"""NVIDIA FLARE: capture a job at its server, record truth at a test site, guard what a site sends.

Needs the extra ``nvflare``. What is read off configuration files alone is in
:mod:`glasshouse.integrations.nvflare_filters`, which needs no FLARE.
"""

from glasshouse.errors import not_installed

try:
    import nvflare.apis.dxo  # noqa: F401 — a part that every message needs
except ImportError as error:
    raise not_installed("work with NVIDIA FLARE", "nvflare, 2.9 or newer", error, extra="nvflare") from error

from glasshouse.integrations.documents import Documents
from glasshouse.integrations.nvflare.capture import CaptureResults, CaptureTasks, capture
from glasshouse.integrations.nvflare.site import GateIn, GateJobs, GateOut
from glasshouse.integrations.nvflare.truth import truth
from glasshouse.integrations.watching import used

__all__ = [
    "CaptureResults",
    "CaptureTasks",
    "Documents",
    "GateIn",
    "GateJobs",
    "GateOut",
    "capture",
    "truth",
    "used",
]
