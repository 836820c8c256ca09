"""What of a client's examples stands in a secure sum: what a blind server reads, and nothing else."""

from collections.abc import Mapping
from functools import partial

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from glasshouse.data.sources import load
from glasshouse.errors import BadValue
from glasshouse.guard.in_sum import SumPreflight, preflight_in_sum
from glasshouse.guard.preflight import preflight
from glasshouse.guard.remedies import gradient_of
from glasshouse.guard.watch import watch
from glasshouse.models import build as models
from glasshouse.wire import Architecture

BATCH, CLIENTS = 16, 10


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8)[order], torch.tensor(labels)[order]


def network(rows: int) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, rows), nn.ReLU(), nn.Linear(rows, 24), nn.ReLU(), nn.Linear(24, 10)
    )


def with_bins(pixels: Tensor, rows: int = 640) -> nn.Sequential:
    """Thresholds of brightness, as in Robbing the Fed: one example of a whole cohort has a bin."""
    model = network(rows)
    brightness = pixels.flatten(1).mean(1)
    with torch.no_grad():
        model[1].weight.fill_(1 / 64)
        model[1].bias.copy_(-torch.quantile(brightness, torch.linspace(0.005, 0.995, rows)))
        model[3].weight.copy_(torch.randn(24, 1).expand(24, rows) / 20)
    return model


def look(
    model: nn.Module, digits: tuple[Tensor, Tensor], clients: int = CLIENTS
) -> tuple[SumPreflight, dict[str, Tensor]]:
    """The answer for the first client, and the sum of the gradients of all."""
    pixels, labels = (t[: BATCH * clients] for t in digits)
    dealt = list(zip(pixels.split(BATCH), labels.split(BATCH), strict=True))
    sent = [gradient_of(model, *one) for one in dealt]
    others = pixels[BATCH:], labels[BATCH:]
    seen = preflight_in_sum(sent[0], model, dealt[0], others, clients=clients, kind="gradient")
    return seen, {name: sum(one[name] for one in sent) for name in sent[0]}


def read(total: Mapping[str, Tensor], inputs: Tensor) -> set[int]:
    """The server's side, blind: quotients of adjacent differences; whom one comes near to, by 20 dB."""
    weight, bias = total["1.weight"].double(), total["1.bias"].double()
    each = weight[:-1] - weight[1:], bias[:-1] - bias[1:]
    kept = each[1].abs() > 1e-6 * each[1].abs().max()
    images = (each[0][kept] / each[1][kept, None]).clamp(0, 1)
    error = torch.cdist(images, inputs.flatten(1).double()).square() / 64
    return set((error.min(0).values < 1e-2).nonzero()[:, 0].tolist())


def test_an_honest_sum_hides_what_an_update_shows(digits: tuple[Tensor, Tensor]) -> None:
    seen, _ = look(network(200), digits)
    assert len(seen.alone.standing("input")) > BATCH / 2
    assert len(seen.standing) <= 1
    assert seen.summary.endswith(
        "would stand in the sum if the others sent nothing, and 1 in a sum with 9 clients like you."
    )


def test_bins_that_isolate_one_of_a_cohort_show_in_the_sum_what_a_server_reads(
    digits: tuple[Tensor, Tensor],
) -> None:
    seen, total = look(with_bins(digits[0][800:]), digits)
    found = read(total, digits[0][:BATCH])
    assert len(found) >= 5
    assert found <= set(seen.standing)
    assert len(seen.standing) <= len(seen.alone.standing("input"))


def test_strangers_are_not_named_in_a_sum() -> None:
    """Half of each client's examples did not take part; images of random numbers resemble nobody."""
    images = torch.rand(2 * BATCH * CLIENTS, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(len(images)) % 10
    model = network(200)
    train = partial(_train_on_half, model)
    mine = images[: 2 * BATCH], labels[: 2 * BATCH]
    rest = images[2 * BATCH :], labels[2 * BATCH :]
    seen = preflight_in_sum(train(*mine), model, mine, rest, clients=CLIENTS, kind="gradient", train=train)
    assert len(seen.alone.leaks) > 4
    assert all(example < BATCH for example in seen.standing)


def _train_on_half(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return gradient_of(model, images[:BATCH], labels[:BATCH])


def test_the_picture_of_somebody_else_is_not_ones_own(digits: tuple[Tensor, Tensor]) -> None:
    """Another client has nearly the same picture: the sum shows that one, with this client or without."""
    model = with_bins(digits[0][800:])
    pixels = digits[0][: BATCH * 2].clone()
    labels = digits[1][: BATCH * 2].clone()
    bright_as_before = torch.eye(8) * torch.tensor([1, -1] * 4) / 256  # so it falls into the same bin
    pixels[BATCH], labels[BATCH] = pixels[0] + bright_as_before, labels[0]
    seen, _ = look(model, (pixels, labels), clients=2)
    assert 0 in seen.alone.standing("input")
    assert 0 not in seen.standing


def test_several_steps_watched(digits: tuple[Tensor, Tensor]) -> None:
    """Contributions of clients count in the units of their own updates, whether they were watched or not."""
    pixels, labels = digits
    model = with_bins(pixels[800:])

    def train(images: Tensor, classes: Tensor) -> dict[str, Tensor]:
        work = with_bins(pixels[800:])
        optimizer = torch.optim.SGD(work.parameters(), lr=1e-3)
        for rows in torch.arange(len(images)).split(8):
            optimizer.zero_grad()
            functional.cross_entropy(work(images[rows]), classes[rows]).backward()
            optimizer.step()
        before = dict(model.named_parameters())
        return {name: (p - before[name]).detach() for name, p in work.named_parameters()}

    mine = pixels[:BATCH], labels[:BATCH]
    rest = pixels[BATCH : BATCH * CLIENTS], labels[BATCH : BATCH * CLIENTS]
    with watch() as watched:
        update = train(*mine)
    seen = preflight_in_sum(update, model, (*mine, watched), rest, clients=CLIENTS, train=train)
    assert len(seen.standing) >= 5
    assert seen.alone == preflight(update, model, *mine, watched=watched)
    unwatched = preflight_in_sum(update, model, mine, rest, clients=CLIENTS, train=train)
    assert len(set(seen.standing) ^ set(unwatched.standing)) <= 2


def test_sentences_hide_in_a_sum_that_fills_the_span() -> None:
    source = load("sentences")
    model = models.build(
        Architecture(
            name="small_gpt",
            inputs=source.inputs,
            task=source.task,
            arguments={"width": 64},
        )
    ).eval()
    some = source.splits["train"].batch(torch.arange(40))

    mine, others = (some.inputs[:1], some.labels[:1]), (some.inputs[1:], some.labels[1:])
    for clients, standing in ((2, (0,)), (40, ())):
        update = gradient_of(model, *mine)
        seen = preflight_in_sum(update, model, mine, others, clients=clients, kind="gradient")
        assert seen.alone.standing("input") == (0,)
        assert seen.standing == standing


@pytest.mark.parametrize(
    ("clients", "others", "words"),
    [
        (1, 40, ("at least 2 clients in the sum", "1")),
        (
            4,
            40,
            ("48 examples of others: 16, as many as behind this update, for each of 3 other clients", "40"),
        ),
    ],
)
def test_too_few(digits: tuple[Tensor, Tensor], clients: int, others: int, words: tuple[str, str]) -> None:
    model, mine = network(20), (digits[0][:BATCH], digits[1][:BATCH])
    rest = digits[0][BATCH : BATCH + others], digits[1][BATCH : BATCH + others]
    with pytest.raises(BadValue) as caught:
        preflight_in_sum(gradient_of(model, *mine), model, mine, rest, clients=clients, kind="gradient")
    assert (caught.value.needs, caught.value.got) == words
    assert "clients=3" in caught.value.fix or clients == 1


def test_others_are_not_the_examples_behind_the_update(digits: tuple[Tensor, Tensor]) -> None:
    model, mine = network(20), (digits[0][:BATCH], digits[1][:BATCH])
    rest = digits[0][BATCH - 3 :], digits[1][BATCH - 3 :]
    update = gradient_of(model, *mine)
    with pytest.raises(BadValue, match="3 that are behind this update"):
        preflight_in_sum(update, model, mine, rest, clients=3, kind="gradient")


def test_an_update_that_cannot_be_made_again_needs_train(digits: tuple[Tensor, Tensor]) -> None:
    model, mine = network(20), (digits[0][:BATCH], digits[1][:BATCH])
    rest = digits[0][BATCH:], digits[1][BATCH:]
    halved = {name: t / 2 for name, t in gradient_of(model, *mine).items()}
    with pytest.raises(BadValue, match="differs from the plain one by 100%") as caught:
        preflight_in_sum(halved, model, mine, rest, clients=3, kind="gradient")
    assert caught.value.fix.startswith("give train=")
    with pytest.raises(BadValue, match="a change of the parameters"):
        preflight_in_sum(halved, model, mine, rest, clients=3)
