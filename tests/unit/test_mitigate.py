"""A leaking update is closed by the least change, or not sent; an update without a leak is left alone."""

from pathlib import Path

import pytest
import torch
from test_preflight import digits, network, recovered, with_bins  # noqa: F401  (a fixture)
from torch import Tensor, nn
from torch.nn import functional

from glasshouse.guard import remedies
from glasshouse.guard.layers.contributions import OWN, Contributions
from glasshouse.guard.layers.standing import find_examples
from glasshouse.guard.layers.trace import LayerTrace
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import Memory, preflight
from glasshouse.guard.remedies import MOST, REMEDIES, Case, distance, gradient_of
from glasshouse.store import read_jsonl

Data = tuple[Tensor, Tensor]


def part(data: Data, first: int, last: int) -> Data:
    return data[0][first:last], data[1][first:last]


def crafted(digits: Data) -> nn.Sequential:  # noqa: F811
    return with_bins(digits[0][200:])


def case_of(model: nn.Module, batch: Data, more: Data | None = None) -> Case:
    return Case(
        update=gradient_of(model, *batch),
        model=model,
        inputs=batch[0],
        labels=batch[1],
        kind="gradient",
        train=lambda inputs, labels: gradient_of(model, inputs, labels),
        memory=None if more is None else Memory(others=more),
    )


def test_of_a_crafted_model_s_update_nothing_is_read_any_more(digits: Data) -> None:  # noqa: F811
    model, batch = crafted(digits), part(digits, 0, 48)
    update = gradient_of(model, *batch)
    assert len(recovered(update, batch[0], decibels=20)) > 20
    seen = mitigate(update, model, batch, kind="gradient")
    if seen.update is not None:
        assert not preflight(seen.update, model, *batch, kind="gradient").leaks
        assert not recovered(dict(seen.update), batch[0], decibels=20)
    else:
        assert all(trial.standing or trial.change > MOST for trial in seen.trials)


def test_an_honest_update_loses_the_rows_of_rarely_firing_units_alone(digits: Data) -> None:  # noqa: F811
    model, batch = network(), part(digits, 0, 64)
    update = gradient_of(model, *batch)
    seen = mitigate(update, model, batch, kind="gradient")
    assert seen.update is not None
    assert seen.before.leaks
    assert seen.after is not None
    assert not seen.after.leaks
    assert distance(update, seen.update) < 0.3
    rows = {row for leak in seen.before.leaks if leak.layer == "1" for row in leak.rows}
    changed = (seen.update["1.weight"] != update["1.weight"]).any(1).nonzero()[:, 0].tolist()
    assert set(changed) >= rows
    assert len(changed) < len(update["1.weight"]) / 2


def test_what_shows_nobody_is_sent_as_it_is(digits: Data) -> None:  # noqa: F811
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))
    batch = part(digits, 0, 200)
    update = gradient_of(model, *batch)
    seen = mitigate(update, model, batch, kind="gradient")
    assert seen.update is update
    assert (seen.remedy, seen.trials) == ("", ())
    assert seen.summary == "Send it: no example was found in this update."


def test_a_batch_of_one_is_not_sent_unless_it_grows(digits: Data, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))
    batch = part(digits, 0, 1)
    update = gradient_of(model, *batch)
    alone = mitigate(update, model, batch, kind="gradient", log=tmp_path / "log.jsonl")
    assert alone.update is None
    assert alone.summary.startswith("Do not send this update: 1 of your 1 examples stood in it")
    grown = mitigate(update, model, batch, kind="gradient", memory=Memory(others=part(digits, 100, 300)))
    assert {trial.remedy: trial.standing for trial in grown.trials}["grow the batch"] == 0
    (line,) = read_jsonl(tmp_path / "log.jsonl")
    assert (line["decision"], line["remedy"], line["standing"]) == ("not sent", "", 1)


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_leaves_the_model_and_the_update_as_they_were(
    name: str,
    digits: Data,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remedies, "MOST", 100.0)  # much noise is needed here
    model, batch = crafted(digits), part(digits, 0, 16)
    case = case_of(model, batch, more=part(digits, 100, 120))
    weights = {n: t.clone() for n, t in model.state_dict().items()}
    before = {n: t.clone() for n, t in case.update.items()}
    state = torch.get_rng_state()
    changed = REMEDIES[name](case)
    assert changed is not None
    assert changed.update.keys() == case.update.keys()
    assert len(changed.inputs) == len(changed.labels)
    assert all(torch.equal(t, weights[n]) for n, t in model.state_dict().items())
    assert all(torch.equal(t, before[n]) for n, t in case.update.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_clipped_examples_pull_alike(digits: Data) -> None:  # noqa: F811
    model, batch = network(), part(digits, 0, 6)
    changed = REMEDIES["clip examples"](case_of(model, batch))
    assert changed is not None
    each = []
    for x, y in zip(*batch, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        weights = [p for n, p in model.named_parameters() if n.endswith("weight")]
        each.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)]))
    norms = torch.stack([g.norm() for g in each])
    clipped = sum(g * min(1.0, float(norms.median() / n)) for g, n in zip(each, norms, strict=True)) / 6
    names = [n for n in changed.update if n.endswith("weight")]
    got = torch.cat([changed.update[n].flatten() for n in names])
    torch.testing.assert_close(got, clipped, rtol=1e-3, atol=1e-5)


def test_noise_that_would_drown_the_update_is_not_tried(digits: Data) -> None:  # noqa: F811
    assert REMEDIES["add noise"](case_of(crafted(digits), part(digits, 0, 16))) is None


def test_a_copy_is_no_excuse_for_its_image() -> None:
    """A row that two copies of a picture made shows the picture, however alike the copies are."""
    generator = torch.Generator().manual_seed(0)
    picture, other = torch.rand(2, 64, generator=generator)
    copies = [picture + 0.05 * torch.rand(64, generator=generator) for _ in range(4)]
    inputs = torch.stack([*copies, other])
    layer = nn.Linear(64, 2)
    pulls = torch.tensor([[1.0, 0.3]] * 4 + [[0.0, 1.0]])
    trace = LayerTrace(name="", layer=layer, inputs=inputs, pulls=pulls)
    found = [
        find_examples(pulls.T @ inputs, Contributions.of(trace, "input", is_exact=True, copies=copies))
        for copies in (1, 4)
    ]
    assert [{leak.example for leak in leaks} - {4} for leaks in found] == [set(), {0, 1, 2, 3}]


def test_copies_that_each_added_little_show_their_image_together() -> None:
    """Five copies of a picture make nine tenths of a row, each .18 of it: less than one example must."""
    generator = torch.Generator().manual_seed(0)
    picture, *others = torch.rand(21, 64, generator=generator)
    copies = [picture + 0.02 * torch.rand(64, generator=generator) for _ in range(5)]
    inputs = torch.stack([*copies, *others])
    pulls = torch.tensor([[1.0]] * 5 + [[0.65]] + [[0.0]] * 19)
    trace = LayerTrace(name="", layer=nn.Linear(64, 1), inputs=inputs, pulls=pulls)
    row = pulls.T @ inputs
    assert float((inputs[:5].norm(dim=1) / row.norm()).max()) < OWN
    found = [
        find_examples(row, Contributions.of(trace, "input", is_exact=True, copies=number))
        for number in (1, 5)
    ]
    assert [{leak.example for leak in leaks} for leaks in found] == [set(), {0, 1, 2, 3, 4}]
