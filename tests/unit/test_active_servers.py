"""SPEAR, trap weights and fishing: what comes out exactly, where nothing can, and what is refused."""

import pytest
import torch
from linear_attacks import AUXILIARY, attacked, errors, silenced

from glasshouse.attacks.inversion.spear import Spear
from glasshouse.attacks.linear.cah import CuriousAbandonHonesty, find_scale, trap_rows
from glasshouse.attacks.linear.fishing import Fishing, next_threshold
from glasshouse.attacks.parts.readout.sparse_columns import ColumnSearch, factorize, find_columns
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.rng import Rng
from glasshouse.testing.toys import play_attacked, toy

RNG = Rng.root(0)
EXACT = 1e-8


def sparse_product(*, rows: int, examples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix of two factors, and the first of them, half of which is zero."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, examples, generator=generator, dtype=torch.float64)
    left *= torch.rand(rows, examples, generator=generator) < 0.5
    return left @ torch.randn(examples, 50, generator=generator, dtype=torch.float64), left


@pytest.mark.parametrize("search", [ColumnSearch(), ColumnSearch(iterations=0, draws=40_000)])
def test_sparse_columns_are_found_by_descents_and_by_draws(search):
    product, left = sparse_product(rows=100, examples=8)
    factors = factorize(product, 8)

    def accept(q):
        return bool((factors.zeros(q).double().mean(0) > 0.3).all())

    columns = factors.columns(find_columns(factors, search, accept=accept, rng=RNG))
    cosines = torch.nn.functional.normalize(columns, dim=0).T @ torch.nn.functional.normalize(left, dim=0)
    assert (cosines.abs().max(0).values > 1 - 1e-9).all()
    assert ((columns == 0).sum(0).sort().values == (left == 0).sum(0).sort().values).all()


def test_what_is_not_accepted_is_searched_to_the_end_of_the_budget():
    product, _ = sparse_product(rows=100, examples=4)
    asked = []
    find_columns(
        factorize(product, 4), ColumnSearch(iterations=5), accept=lambda q: bool(asked.append(q)), rng=RNG
    )
    assert len(asked) == 5


@pytest.mark.parametrize("protocol", [{}, {"protocol": "fedavg", "local_epochs": 2}])
def test_spear_is_exact_for_batches(protocol):
    played = toy(examples=6, **protocol)
    (claim,) = Spear().run(played.view(client=1), rng=RNG)
    assert (errors(claim, played.setting.shard(1)) < 1e-6).all()
    assert (errors(claim, played.setting.shard(0)) > 1e-2).all()
    assert claim.inputs.shape == (6, 1, 8, 8)


def test_spear_says_nothing_when_its_budget_is_spent():
    played = toy(examples=6)
    (claim,) = Spear(search=ColumnSearch(iterations=0, draws=0)).run(played.view(), rng=RNG)
    assert claim.inputs.shape == (0, 1, 8, 8)


def test_noise_hides_the_zeros_from_spear():
    played = toy(examples=6, defenses=(GaussianNoise(std=1e-2),))
    (claim,) = Spear(search=ColumnSearch(iterations=6)).run(played.view(), rng=RNG)
    assert not (errors(claim, played.setting.shard(0)) < 1e-3).any() if len(claim.inputs) else True


def test_spear_refuses_large_batches_and_other_activations():
    with pytest.raises(Inapplicable, match=r"fewer examples than 'features\.fc1' has rows and inputs, 8"):
        Spear().run(toy(examples=8, arguments={"hidden": "8,8"}).view(), rng=RNG)
    with pytest.raises(Inapplicable, match="attack 'spear'"):
        Spear().run(toy(model="convnet", arguments={"width": 2}).view(), rng=RNG)


def test_half_of_a_trap_row_is_negative_and_the_other_half_the_same_but_smaller():
    (row,) = trap_rows(1, 64, scale=0.5, rng=RNG)
    negative, positive = -row[row < 0], row[row > 0]
    torch.testing.assert_close(negative.sort().values, positive.sort().values * 2)


def test_the_scale_makes_rows_fire_as_often_as_asked():
    pixels = AUXILIARY.inputs.flatten(1)
    rows = trap_rows(400, 64, scale=find_scale(pixels, 0.1, rng=RNG), rng=RNG.child("others"))
    assert 0.07 < float((pixels @ rows.T > 0).float().mean()) < 0.13


def test_trap_weights_give_images_out_of_a_secure_sum():
    attack = CuriousAbandonHonesty(fires=1.0)
    crafted, view, played = attacked(attack, clients=4, examples=2, arguments={"hidden": "400,32"})
    (claim,) = attack.run(view, rng=RNG)
    assert (errors(claim, played.setting.private) < EXACT).sum() >= 5
    honest = played.setting.start
    changed = {n for n, t in crafted.default.tensors.items() if not torch.equal(t, honest[n])}
    assert changed == {"features.fc1.weight", "features.fc1.bias"}


def test_convolutions_before_trap_weights_pass_the_image_on():
    attack = CuriousAbandonHonesty(fires=1.0)
    arguments = {"width": 2, "poolings": 0, "batch_norm": False, "hidden": 400}
    _, view, played = attacked(attack, clients=4, examples=2, model="maui_cnn", arguments=arguments)
    (claim,) = attack.run(view, rng=RNG)
    assert (errors(claim, played.setting.private) < EXACT).sum() >= 5


def test_trap_weights_refuse_poolings_and_read_nothing_from_nothing():
    with pytest.raises(Inapplicable, match="nothing but convolutions that can pass the image on"):
        play_attacked(CuriousAbandonHonesty(), model="lenet5")
    _, view, _ = attacked(CuriousAbandonHonesty(), examples=2)
    (claim,) = CuriousAbandonHonesty().run(silenced(view), rng=RNG)
    assert len(claim.inputs) == 0
    with pytest.raises(BadValue, match="fires > 0"):
        CuriousAbandonHonesty(fires=0.0)


def fished(strategy: str, labels: list[int], target: int) -> tuple[object, object]:
    """Claim and cohort of one round with these labels."""
    for seed in range(300):
        played = toy(clients=len(labels), seed=seed)
        if played.setting.private.labels.tolist().count(target) == labels.count(target):
            attack = Fishing(strategy=strategy, target=target)
            result = play_attacked(attack, clients=len(labels), seed=seed)
            (claim,) = attack.run(result.view, rng=RNG)
            return claim, result.toy.setting.private
    raise AssertionError("no such cohort")


@pytest.mark.parametrize(("of_class", "found"), [(0, 0), (1, 1), (2, 0)])
def test_class_fishing_reads_the_only_example_of_a_class(of_class, found):
    claim, private = fished("class", [3] * of_class + [0] * (8 - of_class), 3)
    assert len(claim.inputs) == found
    if found:
        hit = errors(claim, private) < 1e-6
        assert private.labels[hit].tolist() == [3]


def test_thresholds_split_the_fullest_bin_and_go_on_downwards():
    values = torch.arange(100.0)
    beyond = next_threshold(values, [], 10)
    assert beyond > 99
    assert next_threshold(values, [(beyond, -3.0)], 10) == pytest.approx(89.1)
    assert next_threshold(values, [(beyond, -3.0), (90.0, -1.0)], 10) == 95.0
    assert next_threshold(values, [(beyond, -3.0), (90.0, -2.0)], 10) == pytest.approx(79.2)


def test_fishing_refuses_a_class_that_is_not_there():
    with pytest.raises(Inapplicable, match="target below 10"):
        Fishing(target=10).check_model(toy().setting.terms.architecture)
    with pytest.raises(Inapplicable, match="attack 'fishing'"):
        Fishing().check_model(toy(model="convnet", arguments={"width": 2}).setting.terms.architecture)
