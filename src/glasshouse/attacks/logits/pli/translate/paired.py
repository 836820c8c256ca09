"""A translation learned from pairs: an encoder-decoder trained with the L1 loss."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.logits.pli.translate.networks import EncoderDecoder
from glasshouse.attacks.logits.pli.translate.pairs import Pairs
from glasshouse.attacks.logits.pli.translate.resume import keep, load_checkpoint
from glasshouse.cache import Checkpoint
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import descend

BATCH = 16


def train_paired(pairs: Pairs, *, epochs: int, rng: Rng, checkpoint: Checkpoint) -> nn.Module:
    """The trained network: shifted (B, C, H, W) → clear; resumes from ``checkpoint`` with the same result."""
    net = start_network(EncoderDecoder, int(pairs.shifted.shape[1]), rng=rng).to(pairs.shifted.device)
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


def start_network(kind: type[EncoderDecoder], channels: int, *, rng: Rng) -> EncoderDecoder:
    """A network whose initial weights come from ``rng``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.child("start").seed())
        return kind(channels)


def apply_network(net: nn.Module, images: Tensor) -> Tensor:
    """Output of ``net`` for images (n, C, H, W), in chunks and without gradients."""
    with torch.no_grad():
        return torch.cat([net(part) for part in torch.split(images, 64)])
