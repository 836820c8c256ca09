"""Flower: capture a federation that runs, audit it, and guard its clients. Needs the extra ``flower``."""

from glasshouse.integrations.flower.capture import capture, watch
from glasshouse.integrations.flower.guard import guard_mod, guarded, preflight_mod
from glasshouse.integrations.flower.truth import truth_mod, used

__all__ = ["capture", "guard_mod", "guarded", "preflight_mod", "truth_mod", "used", "watch"]
