"""The guard: entropy against its definition, each rule on what it must and must not find, the command."""

import json
import math

import pytest
import torch

from glasshouse.api.guard import architecture, guard, own_examples
from glasshouse.cli.main import main
from glasshouse.data.sources import load
from glasshouse.errors import BadFile, BadValue
from glasshouse.guard.inspect import inspect
from glasshouse.guard.vectors import normalized_entropy
from glasshouse.models.build import build, state
from glasshouse.models.fit import fit
from glasshouse.rng import Rng
from glasshouse.settings import Recipe
from glasshouse.store import write_tensors
from glasshouse.wire import Architecture

AGREED = Architecture.of("maui_cnn", (3, 16, 16), 10, {"width": 8, "hidden": 32})


@pytest.fixture
def honest():
    return state(build(AGREED, rng=Rng.root(1)))


def slow(values, width):
    bins = [round(v / width) for v in values]
    share = [bins.count(b) / len(bins) for b in dict.fromkeys(bins)]
    return -sum(p * math.log(p) for p in share) / math.log(len(values))


@pytest.mark.parametrize(
    "values", [[0.0, 1e-7, 0.3, 0.3], [0.1, 0.2, 0.3, 0.4], [1.0] * 5, [0.0, 2e-6, 4e-6, 4e-6]]
)
def test_entropy_is_its_definition(values):
    assert normalized_entropy(torch.tensor(values, dtype=torch.float64)) == pytest.approx(slow(values, 1e-6))


def test_nothing_is_found_in_an_honest_model(honest):
    records = inspect(honest, agreed=honest)
    assert records.inspection.findings == ()
    assert records.inspection.values["minimum"] > 0.85


def crafted(honest, change):
    return {**honest, **change(honest)}


def identity(honest):
    weight = honest["features.conv1.weight"].clone()
    weight[:3] = 0
    weight[0, 0, 1, 1] = 1
    return {"features.conv1.weight": weight}


def same_rows(honest):
    row = torch.linspace(0.1, 1, honest["head.hidden.weight"].shape[1])
    return {"head.hidden.weight": torch.stack([row * (i + 1) for i in range(32)])}


def constant_bias(honest):
    return {"head.hidden.bias": torch.full((32,), 0.25)}


def broken(honest):
    weight, bias = honest["head.hidden.weight"].clone(), honest["features.bn0.bias"].clone()
    weight[:, :3], bias[0] = torch.nan, torch.inf
    return {"head.hidden.weight": weight, "features.bn0.bias": bias}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (constant_bias, "head.hidden: entropy of the bias is as low as 0"),
        (broken, "head.hidden.weight: 96 of "),
        (broken, "features.bn0.bias: 1 of 8 values are not finite"),
        (identity, "1 of 8 are identity kernels"),
        (identity, "2 of 8 are all-zero kernels"),
        (identity, "entropy of 3 of 8 kernels"),
        (same_rows, "31 of 32 rows repeat another"),
        (lambda h: {"features.front.weight": torch.randn(4, 16)}, "not agreed: features.front.weight"),
        (lambda h: {"head.out.weight": torch.randn(11, 32)}, "head.out.weight is (11, 32), not (10, 32)"),
    ],
)
def test_each_mark_is_found(honest, change, words):
    findings = inspect(crafted(honest, change), agreed=honest).inspection.findings
    assert any(words in sentence for sentence in findings)


@pytest.mark.parametrize("kernels", [False, True])
def test_entropies_of_many_vectors_are_those_of_each(kernels):
    """Sorted or counted, with values that repeat and with none that do."""
    draws = torch.Generator().manual_seed(0)
    weight = torch.randint(-6, 6, (5, 3, 4, 4), generator=draws) * 1e-2
    weight[1] = torch.randn(3, 4, 4, generator=draws)
    weight = weight if kernels else weight.reshape(5, -1)
    (seen,) = inspect({"layer.weight": weight}).vectors
    expected = [slow(v.tolist(), 1e-6) for v in (weight.flatten(1) if kernels else weight.reshape(1, -1))]
    assert seen.entropies.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_agree_in_some_entries_alone_do_not_repeat_each_other(seed):
    draws = torch.Generator().manual_seed(seed)
    weight = torch.randint(-1, 2, (60, 9), generator=draws).float() * torch.rand(60, 1, generator=draws)
    weight[7] = -2 * weight[3]
    scaled = [row / next((v for v in row.tolist() if abs(v) == float(row.abs().max())), 1) for row in weight]
    distinct = len({tuple((row.round(decimals=5) + 0.0).tolist()) for row in scaled if row.any()})
    filled = int(weight.any(1).sum())
    findings = inspect({"layer.weight": weight}).inspection.findings
    expected = f"layer: {filled - distinct} of 60 rows repeat another, up to a factor"
    assert filled > distinct
    assert [s for s in findings if "rows repeat" in s] == [expected]


@pytest.mark.parametrize("seed", range(3))
def test_honest_columns_of_two_entries_agree_by_chance_and_are_no_finding(seed):
    two = Architecture.of("maui_cnn", (3, 8, 8), 2, {"width": 4, "hidden": 2048})
    model = state(build(two, rng=Rng.root(seed)))
    assert inspect(model, agreed=model).inspection.findings == ()
    model["head.hidden.weight"][5] = 2 * model["head.hidden.weight"][7]
    (finding,) = inspect(model, agreed=model).inspection.findings
    assert "1 of 2048 rows repeat another" in finding


@pytest.mark.parametrize(
    ("name", "shape", "arguments"),
    [
        ("mlp", (1, 8, 8), {}),
        ("lenet5", (1, 8, 8), {}),
        ("convnet", (3, 16, 16), {}),
        ("resnet18", (3, 32, 32), {"width": 8}),
        ("scale_mia_cnn", (3, 32, 32), {}),
        ("shufflenet_v2", (3, 32, 32), {}),
    ],
)
def test_fresh_models_pass(name, shape, arguments):
    fresh = Architecture.of(name, shape, 10, arguments)
    model = state(build(fresh, rng=Rng.root(4)))
    assert inspect(model, agreed=model).inspection.findings == ()


def test_a_trained_model_with_its_biases_passes():
    digits = load("digits").split("train").batch(torch.arange(400))
    small = Architecture.of("maui_cnn", (1, 8, 8), 10, {"width": 8, "hidden": 32})
    model = build(small, rng=Rng.root(1))
    fit(model, digits, Recipe(epochs=3, batch_size=32), rng=Rng.root(2))
    records = inspect(state(model))
    assert records.inspection.findings == ()
    assert any(v.kind == "bias" and v.layer.startswith("features.bn") for v in records.vectors)
    assert records.inspection.values["minimum"] > 0.88


def test_biases_are_measured_unless_zero_or_too_small():
    weight = torch.randn(16, 9, generator=torch.Generator().manual_seed(0))
    biases = {"zero.bias": torch.zeros(32), "few.bias": torch.arange(7.0), "norm.weight": torch.ones(16)}
    records = inspect({"fc.weight": weight, "fc.bias": torch.arange(16.0), **biases})
    assert [(v.layer, v.kind) for v in records.vectors] == [("fc", "linear"), ("fc", "bias")]
    assert records.inspection.values["skipped"] == 1
    assert records.inspection.findings == ()


def test_what_is_odd_in_the_reference_too_is_no_finding(honest):
    odd = crafted(honest, lambda h: {"head.hidden.weight": (h["head.hidden.weight"] * 50).round() / 50})
    alone, beside = inspect(odd), inspect(odd, reference=odd)
    assert any("entropy" in s for s in alone.inspection.findings)
    assert not any("entropy" in s for s in beside.inspection.findings)


def pruned(model, share=0.5):
    """The smallest half of each weight is zero."""
    kept = {n: t.abs() >= t.abs().flatten().quantile(share) for n, t in model.items() if t.ndim > 1}
    return {n: t * kept[n] if n in kept else t for n, t in model.items()}


def four_bits(model):
    return {n: (t / t.abs().max() * 7).round() * t.abs().max() / 7 for n, t in model.items()}


@pytest.mark.parametrize("change", [pruned, four_bits])
def test_an_honest_model_of_a_federation_that_compresses_is_silenced_by_the_last_one(change):
    """Another model, compressed alike: the rules alone refuse it, but not beside the reference."""
    few = Architecture.of("lenet5", (1, 28, 28), 10)
    last, now = (change(state(build(few, rng=Rng.root(seed)))) for seed in (1, 2))
    assert inspect(now).findings
    assert inspect(now, reference=last).findings == ()


def test_a_reference_says_which_structure_is_agreed_and_one_of_another_network_is_refused(honest):
    more = {**honest, "extra.weight": torch.ones(4, 4), "extra.bias": torch.zeros(4)}
    assert any(s.startswith("structure") for s in inspect(more, reference=honest).findings)
    assert inspect(more, agreed=more, reference=more).fits
    other = state(build(Architecture.of("mlp", (1, 28, 28), 10)))
    for agreed in (None, honest):
        with pytest.raises(BadValue, match="honest model of the same architecture"):
            inspect(honest, agreed=agreed, reference=other)
    arrays = [t.numpy() for t in honest.values()]
    assert guard(arrays, reference=honest).fits
    with pytest.raises(BadValue, match="0 of its"):
        guard(arrays[:-1], reference=honest)


def test_a_pruned_reference_does_not_silence_what_was_crafted(honest):
    odd = crafted(pruned(honest), lambda h: {**identity(h), **same_rows(h)})
    findings = inspect(odd, reference=pruned(honest)).findings
    assert any("31 of 32 rows repeat another" in s for s in findings)
    assert any(
        "are identity kernels" in s for s in inspect(crafted(honest, identity), reference=honest).findings
    )


def test_a_dense_reference_with_a_zero_by_chance_excuses_no_crafted_row():
    """One entry of 65,536 is zero, as in any drawn weight; no row of the honest model is odd."""
    honest = {"fc.weight": torch.randn(256, 256, generator=torch.Generator().manual_seed(0))}
    honest["fc.weight"][3, 5] = 0
    odd = {"fc.weight": honest["fc.weight"].clone()}
    odd["fc.weight"][:4] = honest["fc.weight"][4]
    assert any("4 of 256 rows repeat" in s for s in inspect(odd, reference=honest).findings)


def test_a_pruned_reference_excuses_one_row_in_eight_more_at_most():
    few = {"fc.weight": torch.randn(32, 64, generator=torch.Generator().manual_seed(0))}
    honest = pruned(few)
    for number in (4, 5):
        odd = {"fc.weight": honest["fc.weight"].clone()}
        odd["fc.weight"][:number] = 0
        findings = inspect(odd, reference=honest).findings
        assert any(f"{number} of 32 rows are zero" in s for s in findings) == (number > 4)


def test_how_well_a_model_fits_own_examples_is_told_beside_the_last_one(tmp_path, capsys):
    few = Architecture.of("mlp", (1, 8, 8), 10, {"hidden": 16})
    digits = load("digits").split("train").batch(torch.arange(256))
    last, now = build(few, rng=Rng.root(1)), build(few, rng=Rng.root(1))
    fit(last, digits, Recipe(epochs=20, batch_size=32), rng=Rng.root(2))
    data = digits.inputs, digits.labels
    values = guard(now, agreed=last, reference=last, data=data).inspection.values
    assert values["reference_accuracy"] > 0.8 > 0.4 > values["accuracy"]
    assert values["loss"] > values["reference_loss"] > 0
    assert "reference_loss" not in guard(now, agreed=last, data=data).inspection.values
    broken = {name: t.clone() for name, t in state(last).items()}
    broken["head.bias"][0] = torch.nan
    few = {name: t for name, t in state(last).items() if name != "head.bias"}
    for reference in (broken, few):  # their fit is nothing to compare with, and no error
        values = guard(now, agreed=last, reference=reference, data=data).inspection.values
        assert "reference_loss" not in values
    for name, one in (("now", now), ("last", last)):
        torch.save(one.state_dict(), tmp_path / f"{name}.pt")
    words = "mlp 1x8x8 10 hidden=16"
    run(tmp_path / "now.pt", "--agreed", words, "--data", "digits", "--reference", str(tmp_path / "last.pt"))
    assert "examples, loss" in (said := capsys.readouterr().out)
    assert "the last accepted one: " in said


def test_whether_a_model_is_the_agreed_one_is_told_apart_from_other_findings(honest):
    assert inspect(crafted(honest, constant_bias), agreed=honest).fits
    assert not inspect({**honest, "more.weight": torch.randn(4, 16)}, agreed=honest).fits
    assert inspect({**honest, "more.weight": torch.randn(4, 16)}).fits


def test_a_model_without_weights_is_refused():
    with pytest.raises(BadValue, match="2 or more dimensions"):
        inspect({"bias": torch.zeros(3)})
    with pytest.raises(BadValue, match=r"got    conv\.weight"):
        inspect({"conv.weight": torch.zeros(0, 3, 3, 3)})


TEXT = "maui_cnn 3x16x16 10 width=8 hidden=32"


@pytest.mark.parametrize(
    "content",
    [
        '{"architecture": {"name": "mlp", "classes": 2}}',
        '{"name": "mlp", "inputs": {"name": "image", "fields": {"size": [8, 8]}}}',
        '{"name": "mlp", "inputs": [8, 8], "task": null}',
        "[3]",
        "{}",
    ],
)
def test_a_file_without_an_architecture_is_said_so(content, tmp_path, honest, capsys):
    terms, model = tmp_path / "terms.json", tmp_path / "model.safetensors"
    terms.write_text(content)
    write_tensors(model, honest)
    with pytest.raises(BadFile, match="inputs, task"):
        architecture(str(terms))
    assert run(model, "--agreed", terms) == 2
    assert "name, inputs" in capsys.readouterr().err


def test_the_architecture_in_words():
    assert architecture(TEXT) == AGREED
    with pytest.raises(BadValue, match="--agreed"):
        architecture("maui_cnn 3by16 10")


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["guard", *map(str, arguments)])
    return stop.value.code


def test_the_command_says_what_it_found(honest, tmp_path, capsys):
    good, bad, page = tmp_path / "good.safetensors", tmp_path / "bad.pt", tmp_path / "page.html"
    write_tensors(good, honest)
    torch.save(crafted(honest, identity), bad)
    torch.save(crafted(honest, broken), tmp_path / "broken.pt")
    assert run(good, "--agreed", TEXT) == 0
    assert run(good, bad, "--agreed", TEXT, "--reference", good, "--report", page) == 1
    output = capsys.readouterr().out
    assert "bad: features.conv1: 1 of 8 are identity kernels" in output
    assert "Entropy of weight vectors" in page.read_text()
    assert "identity kernels" in page.read_text()
    assert "No. Do not train on 1 of 2 models" in page.read_text()
    assert run(good, "--report", page) == 0
    assert "Unclear. Nothing odd was found" in page.read_text()  # no architecture, no data of one's own
    assert "Too small" not in output
    write_tensors(tmp_path / "two.safetensors", state(build(architecture("mlp 1x8x8 2"))))
    assert run(tmp_path / "two.safetensors") == 0
    assert "Too small: vectors of fewer than 8 values" in capsys.readouterr().out
    assert run(tmp_path / "broken.pt", "--agreed", TEXT) == 1
    output = capsys.readouterr().out
    assert "head.hidden.weight: 96 of" in output
    assert "3rd percentile" in output
    assert run(bad, "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert result["bad"]["minimum"] == 0
    assert len(result["bad"]["findings"]) == 3


def test_a_model_that_passes_every_rule_is_tried_on_own_data(tmp_path, capsys):
    words = "mlp 1x8x8 10 hidden=128 mean=0.0 std=1.0"
    honest = state(build(architecture(words)))
    crafted = {name: t.clone() for name, t in honest.items()}
    images = own_examples("digits", architecture(words))[0]
    thresholds = torch.quantile(images.flatten(1).mean(1), torch.linspace(0.01, 0.99, 128))
    scales = torch.linspace(0.5, 3, 128)
    draws = torch.Generator().manual_seed(7)
    noise = 1 + 1e-3 * torch.randn(128, 64, generator=draws)  # rows and columns do not repeat each other
    crafted["features.fc1.weight"] = (
        scales[:, None] * (1 + 0.5 * torch.randn(64, generator=draws)) / 64 * noise
    )
    crafted["features.fc1.bias"] = -scales * thresholds
    noise = 1 + 1e-3 * torch.randn(10, 128, generator=draws)
    crafted["head.weight"] = torch.randn(10, 1, generator=draws) / scales * noise
    write_tensors(tmp_path / "honest.safetensors", honest)
    write_tensors(tmp_path / "crafted.safetensors", crafted)
    assert run(tmp_path / "crafted.safetensors") == 0
    output = capsys.readouterr().out
    assert "Not covered: what the model does to your data." in output
    assert "give --data and --agreed" in output
    assert run(tmp_path / "crafted.safetensors", "--agreed", words, "--data", "digits") == 1
    assert "Do not train on this: " in capsys.readouterr().out
    assert run(tmp_path / "honest.safetensors", "--agreed", words, "--data", "digits") == 0
    assert "Nothing odd was found." in capsys.readouterr().out
    assert run(tmp_path / "honest.safetensors", "--data", "digits") == 2
    assert "--agreed" in capsys.readouterr().err
    assert run(tmp_path / "honest.safetensors", "--agreed", "mlp 1x8x8 2", "--data", "digits") == 2
