"""Flower: capture a federation that runs, and audit it. Needs the extra ``flower``."""

from glasshouse.integrations.flower.capture import capture, watch

__all__ = ["capture", "watch"]
