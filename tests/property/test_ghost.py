"""Ghost norms against plain autograd, one candidate after the other."""

import pickle
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.parts.matching.fixed import FixedConv2d, fix_convolutions
from glasshouse.attacks.parts.matching.folding import fold_norms
from glasshouse.attacks.parts.matching.ghost import Ghost, supports
from glasshouse.attacks.parts.matching.plain import Plain
from glasshouse.attacks.parts.matching.targets import Moments
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

SHAPE, CLASSES, RESTARTS = (3, 12, 12), 5, 4
ARGUMENTS = {
    "convnet": {"width": 2},
    "resnet18": {"width": 4},
    "lenet_sigmoid": {},
    "lenet5": {},
    "mlp": {"hidden": 9},
}


class Normed(nn.Module):
    """What the zoo lacks: group and layer norm, stride and dilation without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, dilation=2),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Flatten(),
            nn.LayerNorm(64),
        )
        self.head = nn.Linear(64, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def model(name: str, dtype: torch.dtype) -> nn.Module:
    draws = torch.Generator().manual_seed(0)
    if name == "normed":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            normed: nn.Module = Normed()
    else:
        architecture = Architecture.of(name, SHAPE, CLASSES, ARGUMENTS[name])
        normed = build(architecture, rng=Rng.root(0))
    for module in normed.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after training: gain, shift and statistics that matter
            module.running_mean.normal_(generator=draws)
            module.running_var.uniform_(0.5, 2.0, generator=draws)
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=draws)
    return normed.eval().requires_grad_(False).to(dtype)


def problem(
    name: str, images: int, dtype: torch.dtype
) -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    net, draws = model(name, dtype), torch.Generator().manual_seed(1)
    target = {n: torch.randn(p.shape, generator=draws).to(dtype) for n, p in net.named_parameters()}
    inputs = torch.rand((RESTARTS, images, *SHAPE), generator=draws).to(dtype).requires_grad_()
    return net, target, inputs, torch.randint(CLASSES, (RESTARTS, images), generator=draws)


def plain(net: nn.Module, target: dict[str, Tensor], masks: dict[str, Tensor] | None = None) -> Plain:
    return Plain(net, dict(net.named_parameters()), target, masks=masks)


def gradients(
    engine: Callable[..., Moments], inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Moments, and the gradient of a random mixture of them: every derivative is in it."""
    result = engine(inputs, targets)
    mix = torch.linspace(0.5, 1.5, result.dot.numel(), dtype=torch.float64).reshape(result.dot.shape)
    value = (mix * result.dot).sum() + (mix.flip(0) * result.square).sum()
    return result.dot.detach(), result.square.detach(), torch.autograd.grad(value, inputs)[0]


@cache
def by_autograd(name: str, images: int, dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the obviously right twin says of the first ``count`` candidates, whatever the fast form is."""
    net, target, inputs, labels = problem(name, images, dtype)
    return gradients(plain(net, target), inputs[:count].detach().requires_grad_(), labels[:count])


def close(one: Tensor, other: Tensor, tolerance: float) -> None:
    assert float((one - other).norm()) <= tolerance * float(other.norm())


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("form", ["auto", "explicit", "pairs"])
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("name", [*ARGUMENTS, "normed"])
def test_agrees_with_autograd(name, images, form, folded):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        net, target, inputs, labels = problem(name, images, dtype)
        assert supports(net, target, SHAPE) is None
        ghost = Ghost(net, [target], form=form, shape=SHAPE if folded else ())
        for count in (RESTARTS, 1):  # a single candidate has a faster way
            some = inputs[:count].detach().requires_grad_()
            fast = gradients(ghost, some, labels[:count])
            for one, other in zip(fast, by_autograd(name, images, dtype, count), strict=True):
                close(one, other, tolerance)


@pytest.mark.parametrize(("name", "norms"), [("convnet", 8), ("resnet18", 20), ("mlp", 0)])
def test_every_batch_norm_of_these_models_is_folded(name, norms):
    net, target, inputs, _ = problem(name, 1, torch.float64)
    copied, folded = fold_norms(net, SHAPE, target)
    assert len(folded) == norms
    assert not any(isinstance(m, nn.BatchNorm2d) for m in copied.modules())
    torch.testing.assert_close(copied(inputs[:, 0]), net(inputs[:, 0]))
    assert any(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == bool(norms)  # the model is as it was


class Shared(nn.Module):
    """The convolution's output goes past its batch norm, too: to fold would change it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(400, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x)
        return self.head((self.norm(made) + made).flatten(1))


def test_a_batch_norm_that_does_not_take_all_of_an_output_stays():
    net = Shared().eval()
    net.norm.running_mean += 1
    copied, folded = fold_norms(net, SHAPE, dict(net.named_parameters()))
    assert not folded
    assert isinstance(copied.norm, nn.BatchNorm2d)


def test_a_switched_off_channel_and_a_frozen_part_are_not_folded():
    net, target, _, _ = problem("convnet", 1, torch.float64)
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    net.get_submodule(norms[0]).weight[0] = 0
    kept = {n: t for n, t in target.items() if not n.startswith(f"{norms[1]}.")}
    assert norms[0] not in {one.norm for one in fold_norms(net, SHAPE, target)[1].values()}
    assert len(fold_norms(net, SHAPE, kept)[1]) == 6


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["convnet", "resnet18", "lenet5", "normed"])
def test_small_gradients_in_one_piece_add_up_to_the_same(name, masked):
    net, target, inputs, labels = problem(name, 2, torch.float64)
    draws = torch.Generator().manual_seed(2)
    masks = [{n: torch.rand(t.shape, generator=draws) > 0.5 for n, t in target.items()}] if masked else []
    apart = Ghost(net, [target], masks=masks, shape=SHAPE)(inputs, labels)
    joined = Ghost(net, [target], masks=masks, shape=SHAPE, apart=False)(inputs, labels)
    assert len(joined.dot) < len(apart.dot)
    torch.testing.assert_close(joined.dot.sum(0), apart.dot.sum(0))
    torch.testing.assert_close(joined.square.sum(0), apart.square.sum(0))


def test_every_candidate_meets_its_own_victim():
    net, target, inputs, labels = problem("convnet", 1, torch.float64)
    other = {n: t.flip(0) for n, t in target.items()}
    both = Ghost(net, [target, other], shape=SHAPE, apart=False)
    alone = [Ghost(net, [t], shape=SHAPE, apart=False) for t in (target, other)]
    for victims in (None, (0, 0, 1, 1), (0, 0, 0, 1), (1, 1, 1, 1)):
        found = both(inputs, labels, victims=victims).dot.sum(0)
        for row, victim in enumerate(victims or (0, 0, 1, 1)):
            torch.testing.assert_close(found[row], alone[victim](inputs, labels).dot.sum(0)[row])


def test_the_engine_can_travel_to_another_process():
    net, target, inputs, labels = problem("convnet", 1, torch.float32)
    engine = Ghost(net, [target], shape=SHAPE, bf16=True)
    before = engine(inputs, labels, create_graph=False).dot
    torch.testing.assert_close(
        pickle.loads(pickle.dumps(engine))(inputs, labels, create_graph=False).dot, before
    )


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 0, 1), (2, 1, 2)])
def test_fixed_convolutions_have_the_slopes_of_others(stride, padding, dilation):
    """Of a function of the slope, too, and the weights get none."""
    own = nn.Conv2d(3, 4, 3, stride=stride, padding=padding, dilation=dilation).double()
    holder = nn.Sequential(own)
    fix_convolutions(holder)
    assert type(holder[0]) is FixedConv2d
    inputs = torch.randn(2, 3, 9, 9, dtype=torch.float64, requires_grad=True)
    found = []
    for layer in (own, holder):
        output = layer(inputs)
        (slope,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        (twice,) = torch.autograd.grad(slope.pow(3).sum(), inputs)
        found.append((output.detach(), slope.detach(), twice))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradgradcheck(holder, (inputs[:1, :, :6, :6],)) is True


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 0, 1), (2, 1, 2)])
def test_fixed_convolutions_form_the_gradient_of_their_weights(stride, padding, dilation):
    """Differentiable in the input, as often as asked."""
    own = nn.Conv2d(3, 4, 3, stride=stride, padding=padding, dilation=dilation).double()
    holder = nn.Sequential(own)
    fix_convolutions(holder)
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, 9, 9, dtype=torch.float64, generator=draws, requires_grad=True)
    found = []
    for layer in (own, holder):
        wanted = [inputs, own.weight]
        slopes = torch.autograd.grad(layer(inputs).pow(3).sum(), wanted, create_graph=True)
        value = sum(slope.pow(2).sum() for slope in slopes)
        twice = [torch.autograd.grad(value, inputs, retain_graph=True)[0] for _ in range(3)]
        (of_one,) = torch.autograd.grad(slopes[1].pow(2).sum(), inputs)
        found.append((*(slope.detach() for slope in slopes), *twice, of_one))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_large_layers_loop_over_restarts(monkeypatch):
    """Above the limit on grouped convolutions the same numbers come out of single ones."""
    net, target, inputs, labels = problem("convnet", 2, torch.float64)
    grouped = gradients(Ghost(net, [target], form="explicit"), inputs, labels)
    monkeypatch.setattr("glasshouse.attacks.parts.matching.ghost_layers.GROUPED", 0)
    looped = gradients(Ghost(net, [target], form="explicit"), inputs, labels)
    for one, other in zip(looped, grouped, strict=True):
        close(one, other, 1e-12)


@pytest.mark.parametrize("form", ["auto", "pairs", "explicit"])
@pytest.mark.parametrize("images", [1, 3])
def test_masks_agree_with_autograd(images, form):
    """Scattered masks (pruning) and whole columns (Soteria), which allow the cheap form."""
    net, target, inputs, labels = problem("convnet", images, torch.float64)
    draws = torch.Generator().manual_seed(2)
    masks = {n: torch.rand(t.shape, generator=draws) > 0.7 for n, t in target.items()}
    masks["head.weight"] = torch.rand((1, target["head.weight"].shape[1]), generator=draws) > 0.5
    target = {n: t * masks[n] for n, t in target.items()}
    fast = gradients(Ghost(net, [target], masks=[masks], form=form), inputs, labels)
    slow = gradients(plain(net, target, masks), inputs, labels)
    for one, other in zip(fast, slow, strict=True):
        close(one, other, 1e-9)


def test_soft_labels_get_a_gradient():
    net, target, inputs, _ = problem("lenet_sigmoid", 2, torch.float64)
    scores = torch.zeros(RESTARTS, 2, CLASSES, dtype=torch.float64, requires_grad=True)
    items = []
    for engine in (Ghost(net, [target], form="explicit"), plain(net, target)):
        gap = engine(inputs, scores.softmax(-1)).gap
        items.append(torch.autograd.grad(gap.sum(), scores)[0])
    close(items[0], items[1], 1e-9)


def test_the_gap_does_not_cancel():
    """At the solution the exact gap is 0 to the last bit or so; square - 2 dot + |g*|² is not, in float32."""
    net, _, inputs, labels = problem("convnet", 1, torch.float32)
    one, label = inputs[:1].detach(), labels[:1]
    loss = F.cross_entropy(net.requires_grad_()(one[0]), label[0])
    result = torch.autograd.grad(loss, list(net.parameters()))
    target = dict(zip(dict(net.named_parameters()), result, strict=True))
    size = sum(float(t.square().sum()) for t in result)
    gap = Ghost(net, [target], form="explicit")(one, label, create_graph=False).gap
    assert float(gap.sum()) < 1e-11 * size


def test_restarts_do_not_touch_each_other():
    net, target, inputs, labels = problem("resnet18", 1, torch.float64)
    whole = Ghost(net, [target])(inputs, labels, create_graph=False)
    alone = Ghost(net, [target])(inputs[2:3], labels[2:3], create_graph=False)
    torch.testing.assert_close(whole.square[:, 2:3], alone.square, rtol=1e-12, atol=0)


def test_bf16_is_close():
    """Eight bits of mantissa: the angle to the target within a few per cent."""
    net, target, inputs, labels = problem("convnet", 1, torch.float32)
    exact = Ghost(net, [target])(inputs, labels, create_graph=False).square.sum(0)
    rough = Ghost(net, [target], bf16=True)(inputs, labels, create_graph=False).square.sum(0)
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0)


def tied() -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)]
    layers[3].weight = layers[1].weight
    return layers


class Overwriting(nn.Module):
    """An activation by function, in place."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x, inplace=True)


class Beside(nn.Module):
    """Another head that runs and whose output is not the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other, self.head = nn.Linear(32, 8), nn.Linear(8, 3), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x.flatten(1)).tanh()
        self.other(features)
        return self.head(features)


def test_a_head_that_is_not_the_answer_has_no_gradient():
    net = Beside().double()
    inputs, labels = torch.rand(2, 1, 2, 4, 4).double().requires_grad_(), torch.tensor([[0], [3]])
    target = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    assert supports(net, target, (2, 4, 4)) is None
    fast = gradients(Ghost(net, [target], shape=(2, 4, 4)), inputs, labels)
    slow = gradients(plain(net, target), inputs, labels)
    for one, other in zip(fast, slow, strict=True):
        close(one, other, 1e-9)


def test_says_why_it_does_not_apply():
    def reason(*layers: nn.Module) -> str | None:
        net = nn.Sequential(*layers)
        return supports(net, dict(net.named_parameters()), (2, 4, 4))

    flat = (nn.Flatten(), nn.Linear(32, 2))
    shared = nn.Conv2d(2, 2, 3, padding=1)
    batch_norm = nn.BatchNorm2d(2)
    assert reason(*flat) is None
    assert reason(batch_norm.eval(), *flat) is None
    assert "train mode" in (reason(batch_norm.train(), *flat) or "")
    assert "overwrites its input" in (reason(nn.ReLU(inplace=True), *flat) or "")
    assert "grouped" in (reason(nn.Conv2d(2, 2, 3, padding=1, groups=2), *flat) or "")
    assert "kind without" in (reason(nn.PReLU(), *flat) or "")
    assert "'1.weight' has a gradient that its layer alone does not explain" in (reason(*tied()) or "")
    assert "has a gradient that its layer" in (reason(nn.Flatten(), nn.Linear(32, 4), Overwriting()) or "")
    assert "runs 2 times" in (reason(shared, shared, *flat) or "")
