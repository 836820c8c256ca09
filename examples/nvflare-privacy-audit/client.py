"""A client-API script: plain SGD, with two lines for the audit."""

import argparse

import nvflare.client as flare
import torch
from network import Net
from sklearn.datasets import load_digits
from torch import nn

from glasshouse.integrations.nvflare import truth

EXAMPLES = {"site-1": 16, "site-2": 48}


def main() -> None:
    """Train on what the server sends until the job ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--truth", default="truth")
    options = parser.parse_args()
    torch.set_num_threads(1)
    flare.init()
    truth(options.truth)  # a test site on its own data: records what it trains on, sends none of it
    images, labels = read_digits(flare.get_site_name())
    net = Net()
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        net.load_state_dict({name: torch.as_tensor(value) for name, value in model.params.items()})
        net.train()
        optimizer, steps = torch.optim.SGD(net.parameters(), lr=options.lr), 0
        for _ in range(options.epochs):
            for batch in torch.arange(len(images)).split(options.batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
                optimizer.step()
                steps += 1
        meta = {"NUM_STEPS_CURRENT_ROUND": steps}
        flare.send(flare.FLModel(params=net.state_dict(), metrics={"loss": 0.0}, meta=meta))


def read_digits(site: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The site's images, (N, 1, 8, 8), and labels; every fourth image of all is left for the audit."""
    digits = load_digits()
    rows = [row for row in range(len(digits.images)) if row % 4 < 3]
    first = sum(count for name, count in EXAMPLES.items() if name < site)
    rows = rows[first : first + EXAMPLES[site]]
    return torch.tensor(digits.images[rows], dtype=torch.float32)[:, None] / 16, torch.tensor(
        digits.target[rows]
    )


if __name__ == "__main__":
    main()
