"""Training that was watched says what each example added: no pass is needed, and steps are told apart."""

import copy
import weakref

import pytest
import torch
from test_preflight import digits, gradient, network  # noqa: F401  (a fixture)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as hooks

from glasshouse.guard import preflight as checks
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import preflight
from glasshouse.guard.watch import Watched, watch

Data = tuple[Tensor, Tensor]


def train(model: nn.Module, images: Tensor, labels: Tensor, *, batch: int) -> dict[str, Tensor]:
    """One epoch of SGD; what the parameters changed by."""
    before = copy.deepcopy(dict(model.named_parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for rows in torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split(batch):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return {name: (p - before[name]).detach() for name, p in model.named_parameters()}


def watched_epoch(images: Tensor, labels: Tensor, *, batch: int = 8) -> tuple[dict[str, Tensor], Watched]:
    model = network()
    with watch() as seen:
        change = train(model, images, labels, batch=batch)
    return change, seen


def test_what_was_watched_adds_up_to_the_update(digits: Data) -> None:  # noqa: F811
    images, labels = digits[0][:48], digits[1][:48]
    change, seen = watched_epoch(images, labels)
    layers = seen.layers(network(), images)
    assert layers is not None
    assert [one.name for one in layers] == ["1", "3", "5"]
    for one in layers:
        torch.testing.assert_close(
            -0.05 * one.pulls.T @ one.inputs, change[f"{one.name}.weight"], atol=1e-6, rtol=1e-4
        )


def test_no_pass_is_made_where_training_was_watched(
    digits: Data,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images, labels = digits[0][:48], digits[1][:48]
    change, seen = watched_epoch(images, labels)
    monkeypatch.setattr(checks, "trace", lambda *_: pytest.fail("a pass"))
    outcome = preflight(change, network(), images, labels, watched=seen)
    assert outcome.controlled
    assert outcome.standing("input")
    monkeypatch.undo()  # a remedy is also looked at by passes
    closed = mitigate(change, network(), (images, labels, seen))
    assert closed.before == outcome


def test_one_step_that_was_watched_is_its_gradient(digits: Data) -> None:  # noqa: F811
    images, labels = digits[0][:32], digits[1][:32]
    change, seen = watched_epoch(images, labels, batch=32)
    model = network()
    by_pass = preflight(gradient(model, images, labels), model, images, labels, kind="gradient")
    assert preflight(change, model, images, labels, watched=seen).standing("input") == by_pass.standing(
        "input"
    )


def test_other_examples_or_another_network_need_a_pass(digits: Data) -> None:  # noqa: F811
    images, labels = digits[0][:48], digits[1][:48]
    change, seen = watched_epoch(images, labels)
    assert seen.layers(network(), digits[0][48:96]) is None
    assert seen.layers(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), images) is None
    assert preflight(change, network(), images, labels, watched=Watched()).controlled


def test_evaluation_is_not_watched_and_no_hook_is_left(digits: Data) -> None:  # noqa: F811
    model = network()
    with watch() as seen:
        model.eval()(digits[0][:4])
        with torch.no_grad():
            model.train()(digits[0][:4])
    assert not seen.marks
    assert not hooks._global_forward_pre_hooks
    with watch(model) as seen:
        model(digits[0][:4]).sum().backward()
    assert not model._forward_pre_hooks
    assert not any(m._forward_hooks for m in model.modules())


def test_tiny_gradients_are_read_like_large_ones(digits: Data) -> None:  # noqa: F811
    """A crafted last layer leaves 1e-22 of a gradient: its rows show the same examples."""
    images, labels = digits[0][:16], digits[1][:16]
    model = network()
    update = gradient(model, images, labels)
    tiny = {name: t * 1e-22 for name, t in update.items()}
    large = preflight(update, model, images, labels, kind="gradient").standing("input")
    assert large
    assert preflight(tiny, model, images, labels, kind="gradient").standing("input") == large


class Overwriting(nn.Module):
    """Two layers; the first one's output is overwritten, at once or from the third step on."""

    def __init__(self, *, since: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 12), nn.Linear(12, 10)
        self.step, self.since = 0, since

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        self.step += 1
        return self.last(hidden.relu_() if self.step > self.since else hidden.relu())


@pytest.mark.parametrize("since", [0, 100])
def test_pulls_are_those_on_what_the_layer_gave(digits: Data, since: int) -> None:  # noqa: F811
    images, labels = digits[0][:40], digits[1][:40]
    model = Overwriting(since=since)
    with watch(model) as seen:
        change = train(model, images, labels, batch=8)
    layers = seen.layers(model, images)
    assert layers is not None
    for one in layers:
        torch.testing.assert_close(
            -0.05 * one.pulls.T @ one.inputs, change[f"{one.name}.weight"], atol=1e-6, rtol=1e-4
        )


def test_what_is_overwritten_later_needs_a_pass(digits: Data) -> None:  # noqa: F811
    model = Overwriting(since=2)
    with watch(model) as seen:
        train(model, digits[0][:40], digits[1][:40], batch=8)
    assert seen.layers(model, digits[0][:40]) is None


def test_copies_of_a_watched_network_train_unseen_and_can_be_copied(digits: Data) -> None:  # noqa: F811
    images, labels = digits[0][:16], digits[1][:16]
    model = network()
    with watch() as seen:
        train(model, images, labels, batch=8)
        other = copy.deepcopy(model)
        train(other, images, labels, batch=8)
        copy.deepcopy(other)
    assert len(seen.marks) == 2


@pytest.mark.parametrize("several", ["losses of one step", "steps before a pass", "a graph of the gradient"])
def test_pulls_of_several_backward_passes_add_up(digits: Data, several: str) -> None:  # noqa: F811
    """Two losses may pull on one step, and one loss on several; a step is hooked first, and then retained."""
    images, labels = digits[0][:48], digits[1][:48]
    model = network()
    names, weights = zip(*model.named_parameters(), strict=True)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with watch(model) as seen:
        for rows in torch.arange(48).view(3, 2, 8):
            losses = [functional.cross_entropy(model(images[some]), labels[some]) for some in rows]
            if several == "losses of one step":
                goals = [factor * loss for loss in losses for factor in (1.0, 0.5)]
            else:
                goals = [losses[0] + losses[1]]
            for goal in goals:
                how = {"retain_graph": True, "create_graph": several == "a graph of the gradient"}
                for name, t in zip(names, torch.autograd.grad(goal, weights, **how), strict=True):
                    expected[name] += t.detach()
    layers = seen.layers(model, images)
    assert layers is not None
    for one in layers:
        assert not one.pulls.requires_grad
        torch.testing.assert_close(one.pulls.T @ one.inputs, expected[f"{one.name}.weight"])


def test_no_output_is_kept_beyond_its_step(digits: Data) -> None:  # noqa: F811
    """With its output the whole graph of a step would stay in memory."""
    outputs: list[weakref.ref[Tensor]] = []
    model = network()
    model[3].register_forward_hook(lambda _, __, output: outputs.append(weakref.ref(output)))
    with watch(model) as seen:
        train(model, digits[0][:32], digits[1][:32], batch=8)
        assert [output() is None for output in outputs] == [True, True, True, False]
    assert outputs[-1]() is None
    assert seen.layers(model, digits[0][:32]) is not None


def test_an_example_may_be_seen_twice_or_not_at_all(digits: Data) -> None:  # noqa: F811
    images, labels = digits[0][:24], digits[1][:24]
    model = network()
    expected = torch.zeros_like(model[5].weight)
    with watch(model) as seen:
        for rows in ([0, 1, 2, 3], [3, 2, 5, 5], [1, 20, 4, 3]):
            model.zero_grad()
            functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            expected += model[5].weight.grad
    layers = seen.layers(model, images)
    assert layers is not None
    never = sorted(set(range(24)) - {0, 1, 2, 3, 4, 5, 20})
    for one in layers:
        assert not one.pulls[never].any()
    last = layers[-1]
    assert not last.inputs[never].any()
    torch.testing.assert_close(last.pulls.T @ last.inputs, expected)  # no step: what enters stays the same
