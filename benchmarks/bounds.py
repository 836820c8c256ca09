"""The bound on any attack under differential privacy beside a closed form or a simulation.

The first table of docs/results/dp.md:
    python -m benchmarks.bounds
"""

import numpy as np

from glasshouse.privacy.bound import Release, attack_ceiling, simulate_share
from glasshouse.privacy.gaussian import gaussian_share

RELEASES = ((1.0, 1, 1.0), (4.0, 50, 1.0), (1.0, 50, 0.1), (0.7, 20, 0.3))
DRAWS = 100_000


def main() -> None:
    """Print a row per release and chance."""
    print("| release | chance | bound | closed form or simulation |\n|---|---|---|---|")
    for noise, steps, rate in RELEASES:
        release = Release(noise_multiplier=noise, steps=steps, rate=rate)
        ceiling = attack_ceiling([release], unit="example")
        for chance in (0.01, 0.1):
            if rate == 1:
                beside = f"{gaussian_share(chance, mu=steps**0.5 / noise):.4f}"
            else:
                simulated = simulate_share(release, chance, draws=DRAWS, rng=np.random.default_rng(0))
                beside = f"{simulated.value:.4f} ± {simulated.error:.4f}"
            bound = ceiling.share(chance).value
            print(f"| σ = {noise}, T = {steps}, q = {rate} | {chance} | {bound:.4f} | {beside} |", flush=True)


if __name__ == "__main__":
    main()
