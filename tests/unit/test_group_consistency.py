"""Registration by translation, and the pull towards the registered mean."""

import torch

from glasshouse.attacks.inversion.gradinversion.consensus import Group, consensus, roll_images, shifts

IMAGES = torch.rand((5, 3, 16, 16), generator=torch.Generator().manual_seed(0))
MOVES = torch.tensor([[0, 0], [1, -2], [-3, 4], [4, 4], [-4, 0]])


def test_finds_every_shift_within_reach():
    moved = roll_images(IMAGES, MOVES)
    assert shifts(moved, IMAGES, reach=4).tolist() == (-MOVES).tolist()


def test_brightness_does_not_decide():
    assert shifts(roll_images(IMAGES, MOVES) + 5.0, IMAGES, reach=4).tolist() == (-MOVES).tolist()


def test_the_consensus_of_equal_seeds_is_each_of_them():
    """Three seeds hold one image, one of them shifted: the consensus is that image where each seed has it."""
    one = IMAGES[:1]
    seeds = torch.stack([one, one, one.roll((2, 1), (-2, -1))])
    torch.testing.assert_close(consensus(seeds, reach=3), seeds)


def test_the_pull_is_the_distance_to_the_mean_without_reach():
    seeds = IMAGES[:, None].clone().requires_grad_()
    pull = Group(0.5)
    expected = 0.5 * (IMAGES - consensus(IMAGES[:, None], reach=4)[:, 0]).square().flatten(1).mean(1)
    torch.testing.assert_close(pull(seeds), expected)
