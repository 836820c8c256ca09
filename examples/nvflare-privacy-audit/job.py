"""Run the job in the simulator or in a POC (``--poc``), its server captured; or export it (``--export``)."""

import argparse
from pathlib import Path

from network import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv

from glasshouse.integrations.nvflare import capture

HERE = Path(__file__).parent.absolute()


def main() -> None:
    """Two sites, three rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--poc", action="store_true", help="server and sites as processes of their own")
    parser.add_argument("--export", type=Path, help="folder for a real deployment")
    options = parser.parse_args()
    out = options.out.absolute()
    recipe = FedAvgRecipe(
        name="privacy-audit",
        model=Net(),
        min_clients=2,
        num_rounds=3,
        train_script=str(HERE / "client.py"),
        train_args=f"--batch_size 16 --epochs 1 --lr 0.1 --truth {out / 'truth'}",
    )
    recipe.add_client_file(str(HERE / "network.py"))
    recipe.add_server_file(str(HERE / "network.py"))
    capture(recipe, out / "capture", model=(Net, (1, 8, 8), 10))
    if options.export:
        recipe.export(str(options.export))
    elif options.poc:
        run = recipe.execute(PocEnv(num_clients=2))
        run.get_result()  # waits for the job's end, and ends the processes
        if run.get_status() != "FINISHED:COMPLETED":
            raise SystemExit(f"the job ended as {run.get_status()}")
    else:
        recipe.execute(SimEnv(num_clients=2, num_threads=2, workspace_root=str(out / "workspace")))


if __name__ == "__main__":
    main()
