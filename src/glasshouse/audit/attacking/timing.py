"""What a setting of an attack takes, as ``glasshouse check`` measured it."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one setting of an attack takes.

    Attributes:
        unit: seconds of one unit of its budget, on one image where the budget goes by images.
        call: seconds of what each call does once.
        certificate: seconds of checking one call's search at the truth.
        step: seconds of one step of what it trains beforehand; None: not timed.
        crafting: seconds of what a malicious server makes before a round, but for what it trains.
    """

    unit: float
    call: float = 0.0
    certificate: float = 0.0
    step: float | None = None
    crafting: float = 0.0
