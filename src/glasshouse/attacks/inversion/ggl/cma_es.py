"""CMA-ES in the latent space, by pycma.

Source: Hansen 2016, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772; settings of Li et al. 2022
(GGL): start at the mean of the latent prior, standard deviation 1. Where we differ: the paper's batches of 50
candidates are the population here; in the authors' code the population is 18, evaluated in batches of 50.
"""

import warnings

import torch

from glasshouse.attacks.inversion.ggl.search import Best, LatentLoss, LatentSearch, Tally
from glasshouse.errors import not_installed
from glasshouse.progress import stage
from glasshouse.rng import Rng

try:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Could not import matplotlib")  # its plots are not used
        import cma
except ImportError as error:
    raise not_installed(
        "the optimizer 'cma_es'", "cma", error, extra="ggl", instead='set search.optimizer = "adam"'
    ) from error


def minimize(loss: LatentLoss, dimension: int, search: LatentSearch, *, rng: Rng) -> Best:
    """One trial; when the strategy stops early, it restarts from the best point with the initial step size.

    Args:
        loss: over points (R, n).
        dimension: n.
        search: its evaluations are spent exactly; the last generation may be incomplete.
        rng: for the samples.
    """
    tally, restarts = Tally(loss, search), 0
    centre = torch.zeros(dimension)
    with stage("searching the latent space"):
        while tally.left:
            draws = rng.child(f"cma/{restarts}").numpy()
            options = {
                "popsize": max(2, search.population),
                "randn": lambda *shape, draws=draws: draws.standard_normal(shape),
                "seed": float("nan"),  # tells pycma not to seed the global generator
                "verbose": -9,
                "maxiter": search.evaluations,
            }
            strategy = cma.CMAEvolutionStrategy(centre.double().numpy(), 1.0, options)
            while tally.left and not strategy.stop():
                proposals = strategy.ask()
                points = torch.stack([torch.from_numpy(x) for x in proposals]).float()[: tally.left]
                values = tally(points)
                if len(points) < len(proposals):
                    break
                strategy.tell(proposals, values.clamp_max(1e300).tolist())
            centre, restarts = tally.best if len(tally.best) else centre, restarts + 1
    return tally.result()
