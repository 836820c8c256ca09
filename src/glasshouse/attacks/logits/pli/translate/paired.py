"""Translations learned from pairs: an encoder-decoder trained with the L1 loss, and ridge regression."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.logits.pli.translate.networks import start_network
from glasshouse.attacks.logits.pli.translate.pairs import Pairs
from glasshouse.attacks.logits.pli.translate.resume import keep, load_checkpoint
from glasshouse.cache import Checkpoint
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import descend

BATCH = 16
STRENGTH = 0.05
"""Weight of the ridge penalty, in multiples of the mean squared norm of an example."""


def train_paired(pairs: Pairs, *, epochs: int, rng: Rng, checkpoint: Checkpoint) -> nn.Module:
    """The trained network: shifted (B, C, H, W) → clear; resumes from ``checkpoint`` with the same result."""
    net = start_network(int(pairs.shifted.shape[1]), rng=rng).to(pairs.shifted.device)
    per_epoch = -(-len(pairs.shifted) // BATCH)
    steps = max(epochs * per_epoch, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    begin = load_checkpoint(checkpoint, {"net": net}, {"adam": optimizer})
    for _ in range(begin * per_epoch):
        optimizer._opt_called = True  # type: ignore[attr-defined]  # the schedule warns when it runs ahead
        schedule.step()
    for epoch in track(range(begin, epochs), "translator", total=epochs - begin):
        order = torch.randperm(len(pairs.shifted), generator=rng.child(f"epoch/{epoch}").torch())
        for rows in torch.split(order.to(pairs.shifted.device), BATCH):
            loss = F.l1_loss(net(pairs.shifted[rows]), pairs.clear[rows])
            descend(optimizer, loss)
            schedule.step()
        keep(checkpoint, epoch + 1, {"net": net}, {"adam": optimizer})
    return net.eval()


def apply_network(net: nn.Module, images: Tensor) -> Tensor:
    """Output of ``net`` for images (n, C, H, W), in chunks and without gradients."""
    with torch.no_grad():
        return torch.cat([net(part) for part in torch.split(images, 64)])


def ridge(pairs: Pairs, shifted: Tensor) -> Tensor:
    """Clear versions (n, C, H, W) of ``shifted``, in [-1, 1]; the strongest translation without a network.

    The regression from shifted to clear pixels is solved in closed form, in the dual.
    """
    middle_x, middle_y = pairs.shifted.flatten(1).mean(0), pairs.clear.flatten(1).mean(0)
    x, y = pairs.shifted.flatten(1) - middle_x, pairs.clear.flatten(1) - middle_y
    gram = x @ x.T
    gram += STRENGTH * gram.diagonal().mean() * torch.eye(len(x), device=x.device)
    weights = torch.linalg.solve(gram, y)
    predictions = (shifted.flatten(1) - middle_x) @ x.T @ weights + middle_y
    clear: Tensor = predictions.view_as(shifted).clamp(-1, 1)
    return clear
