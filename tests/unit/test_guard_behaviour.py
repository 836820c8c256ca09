"""What a received model does to a client's own batch, seen without reading its weights."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.behaviour.inspect import (
    FRESH,
    LONGER,
    RECIPES,
    HonestLayer,
    HonestRange,
    initialise_again,
    inspect_behaviour,
    learn_honest_range,
    watch_honest_models,
    widen,
)
from glasshouse.guard.behaviour.measures import alike, concentration, isolated, narrowness, paired
from glasshouse.guard.behaviour.observe import LayerBehaviour, observe
from glasshouse.guard.trace import LayerTrace, trace
from glasshouse.guard.preflight import preflight

BATCH = 48


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8)[:600], torch.tensor(labels)[:600]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


def classifier() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


def linear(model: nn.Sequential, place: int) -> nn.Linear:
    layer = model[place]
    assert isinstance(layer, nn.Linear)
    return layer


def with_bins(model: nn.Sequential, pixels: Tensor, *, rows: int, noise: float = 0.0) -> nn.Sequential:
    """Some units compare brightness with rising thresholds, as in Robbing the Fed, at various scales."""
    brightness = pixels.flatten(1).mean(1)
    thresholds = torch.quantile(brightness, torch.linspace(0.01, 0.99, rows))
    scales = torch.linspace(0.5, 3, rows)
    place = torch.randperm(200)[:rows]
    back = torch.randn(10)
    first, last = linear(model, 1), linear(model, 3)
    with torch.no_grad():
        direction = 1 + noise * torch.randn(64)
        first.weight[place] = scales[:, None] * direction / 64
        first.bias[place] = -scales * thresholds
        last.weight[:, place] = back[:, None] / scales
    return model


def with_trap_weights(model: nn.Sequential, *, scale: float) -> nn.Sequential:
    """Half of each row's weights negative, the other half smaller by a factor (Boenisch et al. 2023)."""
    with torch.no_grad():
        for row in linear(model, 1).weight:
            places = torch.randperm(64)
            sizes = torch.rand(32)
            row[places[:32]] = -sizes
            row[places[32:]] = scale * sizes[torch.randperm(32)]
        linear(model, 1).bias.zero_()
    return model


def with_one_class(model: nn.Sequential) -> nn.Sequential:
    """Only examples of one class reach the layers below (Wen et al. 2022)."""
    with torch.no_grad():
        linear(model, 3).weight[torch.arange(10) != 3] = 0
        linear(model, 3).bias[torch.arange(10) != 3] = 10
    return model


def test_contributions_add_up_to_the_gradient(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, dilation=2, padding_mode="reflect"),
        nn.Conv2d(4, 6, 3, groups=2, padding="same"),
        nn.Flatten(2),
        nn.Conv1d(6, 8, 3, padding=1),
        nn.Linear(9, 5),
        nn.Flatten(),
        nn.Linear(40, 10),
    )
    loss = torch.nn.functional.cross_entropy(model(pixels[:20]), labels[:20])
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    expected = torch.autograd.grad(loss, weights)
    layers = trace(model, pixels[:20], labels[:20])
    assert len(layers) == len(expected) == 5
    for one, gradient in zip(layers, expected, strict=True):
        total = torch.cat(list(one.contributions())).sum(0)
        torch.testing.assert_close(total.reshape(gradient.shape), gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3),
        nn.Conv2d(4, 6, (3, 2), stride=(3, 1), padding=(2, 0), dilation=(2, 1), groups=2),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, dilation=2, padding_mode="reflect", groups=4),
        nn.Conv2d(4, 6, 4, padding="same", padding_mode="circular"),
        nn.Conv2d(4, 48, 5, padding=2, stride=5),  # few positions: by inner products of them
    ],
)
def test_sizes_are_the_lengths_of_contributions(layer: nn.Conv2d) -> None:
    """However a convolution's patches are copied, and whatever is summed first."""
    inputs = torch.randn(19, 4, 13, 12)
    pulls = torch.randn_like(layer(inputs))
    one = LayerTrace(name="conv", layer=layer, inputs=inputs, pulls=pulls)
    expected = torch.cat(list(one.contributions())).norm(dim=2).double()
    torch.testing.assert_close(one.sizes, expected, rtol=1e-4, atol=1e-4)


def test_the_model_is_left_as_it_was(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits
    model = network()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    trace(model, pixels[:8], labels[:8])
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_one_example_alone_in_a_row_or_a_difference() -> None:
    layer = nn.Linear(3, 3)
    inputs = torch.eye(4, 3) + 1
    pulls = torch.zeros(4, 3)
    pulls[2, 0] = 1  # a row of its own
    pulls[:, 1] = torch.tensor([1.0, 2.0, 0.5, 0.0])
    pulls[:, 2] = torch.tensor([2.0, 4.0, 1.0, 5.0])  # twice the row before it, and the last example
    one = LayerTrace(name="fc", layer=layer, inputs=inputs, pulls=pulls)
    assert isolated(one).tolist() == [False, False, True, False]
    assert paired(one).tolist() == [False, False, False, True]


def test_narrowness_is_of_the_units_that_are_reached() -> None:
    pulls = torch.tensor([[1.0, 0.0, 2.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    one = LayerTrace(name="fc", layer=nn.Linear(2, 3), inputs=torch.ones(4, 2), pulls=pulls)
    assert narrowness(one) == pytest.approx((0 + 0.75) / 2)
    nothing = LayerTrace(name="fc", layer=nn.Linear(2, 3), inputs=torch.ones(4, 2), pulls=0 * pulls)
    assert narrowness(nothing) == 0


def test_concentration_of_even_single_and_no_examples() -> None:
    layer = nn.Linear(2, 1)

    def of(*sizes: float) -> float:
        one = LayerTrace(name="fc", layer=layer, inputs=torch.ones(4, 2), pulls=Tensor(sizes)[:, None])
        return concentration(one)

    assert of(1, 1, -1, 1) == pytest.approx(0, abs=1e-6)
    assert of(0, 3, 0, 0) == pytest.approx(0.75)
    assert of(0, 0, 0, 0) == 1


def of_outputs(inputs: Tensor, layer: nn.Linear) -> LayerTrace:
    """A layer on inputs (B, n), and what came out."""
    with torch.no_grad():
        outputs = layer(inputs)
    return LayerTrace(name="fc", layer=layer, inputs=inputs, pulls=torch.ones_like(outputs), outputs=outputs)


def test_units_are_alike_that_follow_one_direction_at_other_thresholds_and_scales() -> None:
    torch.manual_seed(0)
    inputs, layer = torch.randn(40, 12), nn.Linear(12, 16)
    assert alike(of_outputs(inputs, layer)) == 0
    with torch.no_grad():
        layer.weight[:6] = layer.weight[0] * torch.tensor([1.0, 2.0, 1e-3, 7.0, -1.0, -0.2])[:, None]
        layer.bias[:6] = torch.linspace(-1, 1, 6)
        layer.weight[6] = 0  # constant: it follows nothing
    assert alike(of_outputs(inputs, layer)) == 6 / 16
    with torch.no_grad():
        layer.weight[:6] += 0.1 * torch.randn(6, 12)
    assert alike(of_outputs(inputs, layer)) == 0


def test_units_on_inputs_that_any_unit_would_follow_alike_are_not_counted() -> None:
    """Behind a layer of which one unit is left all others see one number; rows are not to blame."""
    torch.manual_seed(0)
    inputs = torch.zeros(40, 12)
    inputs[:, 3] = torch.rand(40)
    assert alike(of_outputs(inputs, nn.Linear(12, 16))) == 0
    assert alike(of_outputs(0 * inputs, nn.Linear(12, 16))) == 0


def test_an_activation_in_place_does_not_change_what_was_recorded(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(inplace=True), nn.Linear(20, 10))
    first = trace(model, pixels[:8], labels[:8])[0]
    assert first.outputs is not None
    assert torch.equal(first.outputs, linear(model, 1)(pixels[:8].flatten(1)))
    assert (first.outputs < 0).any()


@pytest.mark.parametrize(("units", "most", "enough"), [(10, 10, 18), (20, 17, 18), (512, 25, 26)])
def test_units_that_are_alike_are_refused_from_two_thresholds_of_nine_copies_on(
    units: int, most: int, enough: int
) -> None:
    """And from one in twenty on; a head of ten classes never is."""
    usual = LayerBehaviour(
        isolated=0.0, paired=0.0, concentration=0.0, narrowness=0.0, alike=0.0, units=units
    )
    limit = HonestLayer(most=usual, isolated_limit=0.0, paired_limit=0.0).alike_limit
    assert most / units <= limit < enough / units


def with_crowded_bins(model: nn.Sequential, pixels: Tensor, *, copies: int) -> nn.Sequential:
    """Each threshold stands in several rows, which the layer behind reads a little differently."""
    thresholds = torch.quantile(pixels.flatten(1).mean(1), torch.linspace(0.01, 0.99, 200 // copies))
    first, last = linear(model, 1), linear(model, 3)
    with torch.no_grad():
        first.weight.copy_((1 + 1e-4 * torch.randn(200, 64)) / 64)
        first.bias.copy_(-thresholds.repeat_interleave(copies))
        last.weight.copy_(torch.randn(10, 1) * (1 + 0.03 * torch.randn(10, 200)))
    return model


def test_bins_that_are_crowded_by_copies_are_refused_for_how_their_units_answer(
    digits: tuple[Tensor, Tensor],
) -> None:
    """The rows most like one another have one threshold: a difference of two of them shows nobody."""
    pixels, labels = digits
    honest = learn_honest_range(classifier(), pixels[:200], labels[:200], batch=BATCH)
    seen = inspect_behaviour(
        with_crowded_bins(classifier(), pixels[200:], copies=10),
        pixels[:BATCH],
        labels[:BATCH],
        honest=honest,
    )
    assert seen.values["paired"] <= seen.values["paired_limit"]
    assert seen.values["isolated"] <= seen.values["isolated_limit"]
    (finding,) = seen.findings
    assert finding.startswith("200 of 200 units of 1 answer to your examples alike")


def test_crafted_models_are_told_from_honest_ones(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits
    honest = learn_honest_range(classifier(), pixels[:200], labels[:200], batch=BATCH)

    def findings(model: nn.Module) -> tuple[str, ...]:
        return inspect_behaviour(model, pixels[:BATCH], labels[:BATCH], honest=honest).findings

    for seed in range(5):
        assert not findings(initialise_again(classifier(), seed=100 + seed))
    for rows in (40, 200):
        for noise in (0.0, 0.5):
            assert findings(with_bins(classifier(), pixels[200:], rows=rows, noise=noise))
    assert findings(with_trap_weights(classifier(), scale=0.6))
    assert findings(with_one_class(classifier()))


def test_an_honest_network_with_statistics_and_dropout_passes(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits
    honest = learn_honest_range(network(), pixels[:200], labels[:200], batch=BATCH)
    model = initialise_again(network(), seed=50)
    assert not inspect_behaviour(model, pixels[:BATCH], labels[:BATCH], honest=honest).findings


def test_nothing_is_told_of_fewer_than_six_examples(digits: tuple[Tensor, Tensor]) -> None:
    """A unit that is dead for the only example is no finding, and no honest model is tried."""
    pixels, labels = digits
    model = with_one_class(classifier())
    one = pixels[:1], labels[:1]
    honest = learn_honest_range(model, pixels, labels, batch=1)
    assert honest == {}
    seen = inspect_behaviour(model, *one, honest=honest)
    assert (seen.findings, seen.values) == ((), {})


def with_dead_units(model: nn.Sequential, *, alive_for: Tensor) -> nn.Sequential:
    """Units that fire for what looks like ``alive_for``, (n, 64), alone; for nothing if there is none."""
    with torch.no_grad():
        linear(model, 1).weight.zero_()
        linear(model, 1).bias.fill_(-1)
        for row, picture in enumerate(alive_for):
            linear(model, 1).weight[row] = picture - 0.5
            linear(model, 1).bias[row] = 0.01 - (picture - 0.5) @ picture
    return model


def test_layers_that_no_example_reaches_are_no_finding_and_those_that_one_reaches_are(
    digits: tuple[Tensor, Tensor],
) -> None:
    """A training that collapsed says nothing of these; who is alone in such a layer is given away."""
    first = digits[0][:BATCH].sign(), digits[1][:BATCH]  # black and white: each is nearest to itself
    honest = learn_honest_range(classifier(), *first, batch=BATCH)
    dead = inspect_behaviour(
        with_dead_units(classifier(), alive_for=torch.empty(0, 64)), *first, honest=honest
    )
    assert (dead.findings, dead.values["unreached"], dead.values["concentration"]) == ((), 2, 0)
    one = with_dead_units(classifier(), alive_for=first[0][:1].flatten(1))
    seen = inspect_behaviour(one, *first, honest=honest)
    assert seen.values["unreached"] == 0
    assert any("as if only 2% of your examples" in finding for finding in seen.findings)


def test_a_layer_that_is_dead_for_the_batch_is_judged_by_further_examples_that_reach_it(
    digits: tuple[Tensor, Tensor],
) -> None:
    """Thresholds that few reach are often reached by none of a batch, and by some in training."""
    pixels, labels = digits[0].sign(), digits[1]
    first, others = (pixels[:BATCH], labels[:BATCH]), (pixels[BATCH:], labels[BATCH:])
    honest = learn_honest_range(classifier(), *first, batch=BATCH)
    waiting = with_dead_units(classifier(), alive_for=others[0][-5:].flatten(1))
    alone = inspect_behaviour(waiting, *first, honest=honest)
    assert (alone.findings, alone.values["unreached"], alone.values["tried"]) == ((), 2, BATCH)
    seen = inspect_behaviour(waiting, *first, honest=honest, others=others)
    assert (seen.values["unreached"], seen.values["tried"]) == (0, 600)
    assert any("as if only 1% of your examples" in finding for finding in seen.findings)
    collapsed = with_dead_units(classifier(), alive_for=torch.empty(0, 64))
    dead = inspect_behaviour(collapsed, *first, honest=honest, others=others)
    assert (dead.findings, dead.values["unreached"], dead.values["tried"]) == ((), 2, 600)


def test_how_few_examples_make_an_update_is_judged_by_further_ones(digits: tuple[Tensor, Tensor]) -> None:
    """A nearly dead network that reaches few of a batch by chance is let through, a fisher is not."""
    pixels, labels = digits
    torch.manual_seed(0)
    dying = classifier()
    layer = linear(dying, 1)
    with torch.no_grad():
        layer.weight[:] = layer.weight[0]  # all units are alive for the same third of the examples
        reached = pixels.flatten(1) @ layer.weight[0]
        layer.bias[:] = -reached.quantile(2 / 3)
    order = reached.argsort()  # four that reach it, and sixty that do not
    few = torch.cat([order[-4:], order[:60]])
    rest = torch.tensor(sorted(set(range(len(order))) - set(few.tolist())))
    first, others = (pixels[few], labels[few]), (pixels[rest], labels[rest])
    honest = learn_honest_range(classifier(), *first, batch=len(few))

    def said(model: nn.Module, others: tuple[Tensor, Tensor] | None = None) -> bool:
        seen = inspect_behaviour(model, *first, honest=honest, others=others)
        return any("as if only" in finding for finding in seen.findings)

    assert said(dying)
    assert not said(dying, others)
    fishing = with_one_class(classifier())
    assert said(fishing)
    assert said(fishing, others)


def test_a_layer_of_faint_inputs_is_not_taken_for_a_dead_one(digits: tuple[Tensor, Tensor]) -> None:
    """Bins behind a layer that scales down, before one that scales up: squares vanish in float32."""
    pixels, labels = digits

    def of_bins(scale: float) -> nn.Sequential:
        torch.manual_seed(0)
        layers = nn.Linear(64, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)
        model = nn.Sequential(nn.Flatten(), *layers)
        thresholds = torch.quantile(pixels[200:].flatten(1).mean(1), torch.linspace(0.01, 0.99, 128))
        with torch.no_grad():
            linear(model, 1).weight.copy_(torch.eye(64) * scale)
            linear(model, 1).bias.zero_()
            linear(model, 2).weight.fill_(1 / 64)
            linear(model, 2).bias.copy_(-thresholds * scale)
            linear(model, 4).weight.copy_(torch.randn(10, 1).expand(10, 128) / scale)
            linear(model, 4).bias.zero_()
        return model

    batch = pixels[:BATCH], labels[:BATCH]
    honest = learn_honest_range(of_bins(1.0), pixels[:200], labels[:200], batch=BATCH)
    plain, faint = (inspect_behaviour(of_bins(scale), *batch, honest=honest) for scale in (1.0, 2.0**-80))
    assert faint.findings == plain.findings != ()
    assert faint.values["unreached"] == 0
    found = []
    for model in (of_bins(1.0), of_bins(2.0**-80)):
        loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        update = dict(zip(dict(model.named_parameters()), gradient, strict=True))
        found.append(preflight(update, model, *batch, kind="gradient").standing("input"))
    assert len(found[0]) > BATCH / 4
    assert found[1] == found[0]


def test_what_is_not_finite_in_a_layer_is_refused(digits: tuple[Tensor, Tensor]) -> None:
    """Also where the logits are finite: of what overflows nothing can be measured."""
    pixels, labels = digits
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Linear(20, 20), nn.Sigmoid(), nn.Linear(20, 10))
    with torch.no_grad():
        linear(model, 1).weight.fill_(1e38)
        linear(model, 2).weight.fill_(1.0)
    assert model(pixels[:8]).isfinite().all()
    with pytest.raises(BadValue, match="infinite ones, or none, at 2"):
        observe(model, pixels[:8], labels[:8])
    update = {name: torch.zeros_like(p) for name, p in classifier().named_parameters()}
    update["1.weight"][3, 4] = torch.nan
    with pytest.raises(BadValue, match="not finite"):
        preflight(update, classifier(), pixels[:8], labels[:8], kind="gradient")


def test_contributions_that_vanish_in_rounding_leave_no_layer_dead() -> None:
    """As those that cancel: dead is only what nothing enters, or nothing pulls on."""
    inputs = torch.ones(4, 2, 3)
    pulls = torch.tensor([1.0, -1.0])[:, None].expand(4, 2, 5)
    one = LayerTrace(name="fc", layer=nn.Linear(3, 5), inputs=inputs, pulls=pulls)
    assert not one.sizes.any()
    assert one.is_reached
    assert concentration(one) == 0.75
    assert concentration(LayerTrace(name="fc", layer=nn.Linear(3, 5), inputs=0 * inputs, pulls=pulls)) == 1


def test_models_trained_longer_are_asked_only_where_more_examples_stand_alone(
    digits: tuple[Tensor, Tensor],
) -> None:
    pixels, labels = digits
    honest = learn_honest_range(classifier(), pixels[:200], labels[:200], batch=BATCH)
    asked: list[HonestRange] = []

    def longer() -> HonestRange:
        asked.append(learn_honest_range(classifier(), pixels, labels, batch=BATCH, steps=LONGER))
        return asked[-1]

    first = pixels[:BATCH], labels[:BATCH]
    assert not inspect_behaviour(
        initialise_again(classifier(), seed=100), *first, honest=honest, longer=longer
    ).findings
    assert inspect_behaviour(with_one_class(classifier()), *first, honest=honest, longer=longer).findings
    assert not asked
    bins = with_bins(classifier(), pixels[200:], rows=200)
    assert inspect_behaviour(bins, *first, honest=honest, longer=longer).findings
    (known,) = asked
    wide = widen(honest, known)
    assert all(wide[n].paired_limit == max(honest[n].paired_limit, known[n].paired_limit) for n in honest)
    assert all(wide[n].most.narrowness == honest[n].most.narrowness for n in honest)


def test_a_training_that_diverges_ends_the_range_and_not_the_inspection() -> None:
    """Pixels of this size throw the recipe with a step of .05 out of what numbers can hold."""
    torch.manual_seed(0)
    images, labels = 1e3 * torch.rand(64, 1, 4, 4), torch.arange(64) % 4
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Linear(12, 12), nn.Linear(12, 4))
    measures = watch_honest_models(model, images, labels, batch=64, steps=LONGER)
    assert len(measures[0]) == FRESH
    assert 0 < len(measures[LONGER[-1]]) < len(RECIPES)
    honest = learn_honest_range(model, images, labels, batch=64)
    assert inspect_behaviour(model, images, labels, honest=honest).findings == ()


def test_refuses_an_empty_batch_and_logits_that_overflow(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits
    with pytest.raises(BadValue, match="0 labels"):
        trace(classifier(), pixels[:0], labels[:0])
    broken = classifier()
    with torch.no_grad():
        linear(broken, 3).bias[0] = torch.inf
    with pytest.raises(BadValue, match="not finite"):
        trace(broken, pixels[:4], labels[:4])
