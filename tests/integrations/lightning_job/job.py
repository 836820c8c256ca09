"""Run the job in the simulator, with its server's view captured."""

import sys
from pathlib import Path

from network import Wrapped
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv

from glasshouse.integrations.nvflare import capture

HERE = Path(__file__).parent.absolute()


def main(out):
    recipe = FedAvgRecipe(
        name="lightning",
        model=Wrapped(),
        min_clients=2,
        num_rounds=2,
        train_script=str(HERE / "client.py"),
        train_args=f"--truth {out / 'truth'}",
    )
    recipe.add_client_file(str(HERE / "network.py"))
    recipe.add_server_file(str(HERE / "network.py"))
    terms = {"batch_size": 16, "local_epochs": 1, "learning_rate": 0.1}
    capture(recipe, out / "capture", model=(Wrapped, (1, 8, 8), 10), terms=terms)
    recipe.execute(SimEnv(num_clients=2, num_threads=2, workspace_root=str(out / "workspace")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
