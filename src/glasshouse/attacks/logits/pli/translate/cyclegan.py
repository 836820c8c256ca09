"""A translation learned without pairs: a small CycleGAN.

Source: Zhu et al. 2017, arXiv:1703.10593; weights of the losses as in PLI's code (cycle 3, identity 0.5,
least squares). Where we differ: smaller networks, batches of 8, no pool of earlier fakes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.logits.pli.translate.networks import patch_critic, start_network
from glasshouse.attacks.logits.pli.translate.pairs import Pairs
from glasshouse.attacks.logits.pli.translate.resume import keep, load_checkpoint
from glasshouse.cache import Checkpoint
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import descend

BATCH, RATE, CYCLE, IDENTITY = 8, 5e-4, 3.0, 0.5


def cyclegan(pairs: Pairs, *, epochs: int, rng: Rng, checkpoint: Checkpoint) -> nn.Module:
    """The trained network: shifted (B, C, H, W) → clear; resumes from ``checkpoint`` with the same result."""
    channels = int(pairs.shifted.shape[1])
    device = pairs.shifted.device
    clear_of = start_network(channels, rng=rng.child("clear")).to(device)
    shifted_of = start_network(channels, rng=rng.child("shifted")).to(device)
    # Layers draw their first weights from the global generator.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.child("critics").seed())
        critics = nn.ModuleList([patch_critic(channels), patch_critic(channels)]).to(device)
    makers = torch.optim.Adam([*clear_of.parameters(), *shifted_of.parameters()], lr=RATE, betas=(0.5, 0.999))
    judges = torch.optim.Adam(critics.parameters(), lr=RATE, betas=(0.5, 0.999))
    nets = {"clear": clear_of, "shifted": shifted_of, "critics": critics}
    optimizers = {"makers": makers, "judges": judges}
    begin = load_checkpoint(checkpoint, nets, optimizers)
    for epoch in track(range(begin, epochs), "translator", total=epochs - begin):
        stream = rng.child(f"epoch/{epoch}")
        # The two sides are not paired: a clear picture is any of all.
        order = torch.randperm(len(pairs.shifted), generator=stream.child("shifted").torch())
        other = torch.randint(len(pairs.every), (len(order),), generator=stream.child("clear").torch())
        for rows, against in zip(torch.split(order, BATCH), torch.split(other, BATCH), strict=True):
            x, y = pairs.shifted[rows.to(device)], pairs.every[against.to(device)]
            fake_y, fake_x = clear_of(x), shifted_of(y)
            cycle = F.l1_loss(shifted_of(fake_y), x) + F.l1_loss(clear_of(fake_x), y)
            same = F.l1_loss(clear_of(y), y) + F.l1_loss(shifted_of(x), x)
            # The makers want the critics to take both translations for real pictures ...
            fooled = _towards(critics[0](fake_y), 1.0) + _towards(critics[1](fake_x), 1.0)
            descend(makers, fooled + CYCLE * (cycle + IDENTITY * same))
            # ... and the critics learn to tell them apart again; makers get no gradient of that.
            judge_loss = _critic_loss(critics[0], y, fake_y.detach()) + _critic_loss(
                critics[1], x, fake_x.detach()
            )
            descend(judges, judge_loss)
        keep(checkpoint, epoch + 1, nets, optimizers)
    return clear_of.eval()


def _towards(votes: Tensor, value: float) -> Tensor:
    return (votes - value).square().mean()


def _critic_loss(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    return (_towards(critic(real), 1.0) + _towards(critic(fake), 0.0)) / 2
