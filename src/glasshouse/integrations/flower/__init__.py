"""Flower: capture a federation that runs, and audit it. Needs the extra ``flower``."""

from glasshouse.integrations.flower.capture import capture, watch
from glasshouse.integrations.flower.truth import truth_mod, used

__all__ = ["capture", "truth_mod", "used", "watch"]
