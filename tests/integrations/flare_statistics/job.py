"""FLARE's own job of statistics in a POC, captured: ``job.py FOLDER``."""

import sys
from pathlib import Path

import document_apps as apps
from columns import Columns
from nvflare.recipe import PocEnv
from nvflare.recipe.fedstats import FedStatsRecipe

from glasshouse.integrations.documents import Documents
from glasshouse.integrations.nvflare import capture

TASKS = ("fed_stats_pre_run", "fed_stats")
ASKED = {
    "count": {},
    "sum": {},
    "mean": {},
    "stddev": {},
    "histogram": {"*": {"bins": 6}},
}


def main(out):
    """Two sites, asked twice: for counts and sums, and for what needs the common mean."""
    recipe = FedStatsRecipe(
        name="statistics",
        stats_output_path="statistics.json",
        sites=["site-1", "site-2"],
        statistic_configs=ASKED,
        stats_generator=Columns(str(out / "truth")),
    )
    sends = Documents(table=apps.cancer_table(), protocol="statistics")
    capture(recipe, out / "capture", model=sends, tasks=TASKS)
    run = recipe.execute(PocEnv(num_clients=2))
    run.get_result()
    if run.get_status() != "FINISHED:COMPLETED":
        raise SystemExit(f"the job ended as {run.get_status()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
