"""FLARE's own job of boosted trees, captured: ``job.py FOLDER bagging|cyclic simulator|poc``."""

import sys
from pathlib import Path

import document_apps as apps
from loader import Loader
from nvflare.app_opt.xgboost.recipes import XGBBaggingRecipe
from nvflare.recipe import PocEnv, SimEnv, set_per_site_config

from glasshouse.integrations.documents import Documents
from glasshouse.integrations.nvflare import capture

SITES = ("site-1", "site-2", "site-3")
ROUNDS = 2


def main(out, mode, place):
    """Three sites, two rounds."""
    recipe = XGBBaggingRecipe(
        name="trees", min_clients=3, training_mode=mode, num_rounds=ROUNDS, local_subsample=1.0, max_depth=3,
        nthread=1,
    )  # fmt: skip
    loader = Loader(str(out / "truth"), ROUNDS)
    set_per_site_config(recipe, {site: {"data_loader": loader} for site in SITES})
    capture(
        recipe,
        out / "capture",
        model=Documents(table=apps.cancer_table(), protocol=f"xgb_{mode}"),
        tasks=("train",),
    )
    if place == "poc":
        run = recipe.execute(PocEnv(clients=list(SITES), num_clients=len(SITES)))
        run.get_result()
        if run.get_status() != "FINISHED:COMPLETED":
            raise SystemExit(f"the job ended as {run.get_status()}")
    else:
        recipe.execute(SimEnv(clients=list(SITES), num_threads=3, workspace_root=str(out / "workspace")))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), *sys.argv[2:])
