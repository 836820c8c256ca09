"""How often the luck of whole runs is called a leak: ``python -m tests.verdicts.lucky_runs`` (minutes)."""

from typing import Final

from tests.verdicts.test_levels import leaks_of_luck

from glasshouse.metrics.statistics import permutation

RUNS: Final = (1, 2, 3, 4, 5, 6, 8)
LUCK: Final = (0.5, 1.5, 3.0, 10.0)
SAMPLES: Final = 400


def main() -> None:
    """One row of docs/result.md per strength of the luck, in standard deviations of a score."""
    permutation.EXCHANGES = 299
    for luck in LUCK:
        rates = (f"{leaks_of_luck(runs, luck, SAMPLES):.3f}" for runs in RUNS)
        print(f"| {luck:g} |", " | ".join(rates), "|", flush=True)


if __name__ == "__main__":
    main()
