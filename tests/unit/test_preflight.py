"""What of a client's examples stands in its update: found where it does, and nowhere else."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from glasshouse.errors import BadValue
from glasshouse.guard.preflight import preflight

ROWS = 200


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8)[:600], torch.tensor(labels)[:600]


def network(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, ROWS), nn.ReLU(), nn.Linear(ROWS, 24), nn.ReLU(), nn.Linear(24, 10)
    )


def with_bins(pixels: Tensor) -> nn.Sequential:
    """Every unit compares brightness with its own threshold, as in Robbing the Fed."""
    model = network()
    brightness = pixels.flatten(1).mean(1)
    with torch.no_grad():
        model[1].weight.fill_(1 / 64)
        model[1].bias.copy_(-torch.quantile(brightness, torch.linspace(0.005, 0.995, ROWS)))
        model[3].weight.copy_(torch.randn(24, 1).expand(24, ROWS) / 20)
    return model


def gradient(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    loss = functional.cross_entropy(model(inputs), labels)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


def recovered(update: dict[str, Tensor], inputs: Tensor, *, decibels: float) -> set[int]:
    """The server's side, blind: quotients of adjacent differences; whom one of them comes near to."""
    weight, bias = update["1.weight"].double(), update["1.bias"].double()
    each = weight[:-1] - weight[1:], bias[:-1] - bias[1:]
    kept = each[1].abs() > 1e-6 * each[1].abs().max()
    read = (each[0][kept] / each[1][kept, None]).clamp(0, 1)
    error = torch.cdist(read, inputs.flatten(1).double()).square() / 64
    return set((error.min(0).values < 10 ** (-decibels / 10)).nonzero()[:, 0].tolist())


def test_a_single_example_stands_in_every_linear_layer(digits: tuple[Tensor, Tensor]) -> None:
    image, label = digits[0][:1], digits[1][:1]
    model = network()
    seen = preflight(gradient(model, image, label), model, image, label, kind="gradient")
    assert (seen.standing("input"), seen.standing("features"), seen.labels) == ((0,), (0,), (0,))
    assert seen.controlled
    assert seen.wrong_classes == 0
    assert seen.summary.startswith("inputs of all of your 1 examples, features of all, labels of all stand")


def test_of_an_honest_batch_stands_what_has_a_row_of_its_own(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits[0][:64], digits[1][:64]
    model = network()
    update = gradient(model, pixels, labels)
    seen = preflight(update, model, pixels, labels, kind="gradient")
    fires = model[1](pixels.flatten(1)) > 0
    alone = set(fires[:, fires.sum(0) == 1].nonzero()[:, 0].tolist())
    assert alone
    assert alone <= set(seen.standing("input"))
    for leak in seen.leaks:
        if leak.missing < 1e-3 and leak.by != "a difference of two rows":
            assert leak.example in alone
    assert seen.standing("features") == ()


def test_what_a_crafted_layer_gives_away_is_what_its_server_reads(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits[0][:48], digits[1][:48]
    model = with_bins(digits[0][200:])
    update = gradient(model, pixels, labels)
    seen = preflight(update, model, pixels, labels, kind="gradient")
    read = recovered(update, pixels, decibels=30)
    assert len(read) > 20
    assert len(read - set(seen.standing("input"))) <= 1  # in a row with a single other, which is no witness
    others = digits[0][100:148]  # not behind this update
    assert not preflight(update, model, others, labels, kind="gradient").standing("input")


def test_bins_of_a_pruned_update_are_read_by_the_bias(digits: tuple[Tensor, Tensor]) -> None:
    """Where one of two neighbouring rows lost an entry, their difference is far off: a server cuts it."""
    pixels, labels = digits[0][:48], digits[1][:48]
    model = with_bins(digits[0][200:])
    update = gradient(model, pixels, labels)
    rows = update["1.weight"]
    update["1.weight"] = torch.where(rows.abs() < rows.abs().quantile(0.3), 0, rows)
    read = recovered(update, pixels, decibels=20)
    assert len(read) > 10
    assert read <= set(preflight(update, model, pixels, labels, kind="gradient").standing("input"))


def test_a_row_that_holds_almost_nothing_shows_nobody(digits: tuple[Tensor, Tensor]) -> None:
    """A stranger whose rows the examples hardly reach: what is left of them is not its picture."""
    pixels, labels = digits[0][:8], digits[1][:8]
    model = network()
    update = gradient(model, pixels, labels)
    fires = model[1](pixels.flatten(1)) > 0
    mine = fires[:, 0] if bool(fires[:, 0].any()) else fires.any(1)
    strange = pixels[mine][:1] * 0 + digits[0][100:101]
    both = torch.cat([pixels, strange]), torch.cat([labels, labels[:1]])
    alone = (model[1](both[0].flatten(1)) > 0)[-1] & ~fires.any(0)
    update["1.weight"][alone] = 1e-30 * torch.rand(int(alone.sum()), 64)
    assert 8 not in preflight(update, model, *both, kind="gradient").standing("input")


def test_noise_that_hides_the_rows_is_noticed(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits[0][:48], digits[1][:48]
    model = with_bins(digits[0][200:])
    clean = gradient(model, pixels, labels)
    torch.manual_seed(3)
    size = float(clean["1.weight"].std())
    noisy = {name: t + size * torch.randn_like(t) for name, t in clean.items()}
    assert len(preflight(clean, model, pixels, labels, kind="gradient").standing("input")) > 20
    assert not preflight(noisy, model, pixels, labels, kind="gradient").standing("input")


def test_several_local_steps(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits[0][:48], digits[1][:48]
    model = with_bins(digits[0][200:])
    trained = with_bins(digits[0][200:])
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
    for rows in torch.arange(48).split(8):
        optimizer.zero_grad()
        functional.cross_entropy(trained(pixels[rows]), labels[rows]).backward()
        optimizer.step()
    before = dict(model.named_parameters())
    change = {name: (p - before[name]).detach() for name, p in trained.named_parameters()}
    read = recovered({name: -t for name, t in change.items()}, pixels, decibels=25)
    seen = preflight(change, model, pixels, labels)
    assert len(read) > 20
    assert len(read - set(seen.standing("input"))) <= 2  # those that fewer than two others witness


def test_signs_of_the_head_name_the_classes_of_a_small_batch(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits[0][:4], digits[1][:4]
    model = network()
    update = {name: -t for name, t in gradient(model, pixels, labels).items()}
    assert preflight(update, model, pixels, labels).labels == (0, 1, 2, 3)
    assert preflight({"1.weight": update["1.weight"]}, model, pixels, labels).labels == ()
    every, classes = digits[0][:10], torch.arange(10)  # a client that holds all classes hides none
    assert preflight(gradient(model, every, classes), model, every, classes, kind="gradient").labels == ()


def test_an_update_of_another_network_is_refused(digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(BadValue, match="conv"):
        preflight({"conv.weight": torch.ones(1)}, network(), digits[0][:2], digits[1][:2])


def test_an_example_that_has_a_row_to_itself_in_one_step_alone_is_found(
    digits: tuple[Tensor, Tensor],
) -> None:
    """A step on four examples, then one on four others: before and after, both units answer to all eight."""
    pixels, labels = digits[0][:8], digits[1][:8]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    with torch.no_grad():
        model[1].weight.abs_()  # every unit answers to everybody
    alone = gradient(model, pixels[3:4], labels[3:4])["1.weight"]
    change = {"1.weight": -0.1 * alone, "1.bias": torch.zeros(6)}
    traced = model[1](pixels.flatten(1)) > 0
    assert traced.all()
    assert preflight(change, model, pixels, labels).standing("input") == (3,)
