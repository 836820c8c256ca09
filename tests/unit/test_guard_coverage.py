"""The guard on tensors of every type, size and number of dimensions: nothing hides, the honest passes."""

import json
import math

import pytest
import torch
from torch import nn

from glasshouse.cli.main import main
from glasshouse.errors import BadFile, BadValue
from glasshouse.guard.dense import dense
from glasshouse.guard.inspect import inspect
from glasshouse.guard.vectors import normalized_entropy
from glasshouse.models.build import build, state
from glasshouse.outside.weights import read_weights
from glasshouse.rng import Rng
from glasshouse.store import write_tensors
from glasshouse.wire import Architecture

AGREED = Architecture.of("maui_cnn", (3, 16, 16), 10, {"width": 8, "hidden": 32})


@pytest.fixture
def honest():
    return state(build(AGREED, rng=Rng.root(1)))


def drawn(*shape, scale=0.1, seed=0):
    return scale * (2 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 1)


def linear(inputs, outputs):
    """As a fresh ``nn.Linear``."""
    return drawn(outputs, inputs, scale=inputs**-0.5)


def findings(tensors, **given):
    return inspect(tensors, **given).inspection.findings


INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_weights_of_another_type_hide_nothing(honest, dtype):
    hidden = torch.ones_like(honest["head.hidden.weight"]).to(dtype)
    kernels = torch.zeros_like(honest["features.conv1.weight"])
    for i in range(len(kernels)):
        kernels[i, i % kernels.shape[1], 1, 1] = 1
    sent = {**honest, "head.hidden.weight": hidden, "features.conv1.weight": kernels.to(dtype)}
    alone = findings(sent)
    assert "features.conv1: 8 of 8 are identity kernels (one entry, zeros around it)" in alone
    assert "head.hidden: 31 of 32 rows repeat another, up to a factor" in alone
    assert any("head.hidden: entropy of the weight is as low as 0 " in s for s in alone)
    name = str(dtype).removeprefix("torch.")
    (kind,) = [s for s in findings(sent, agreed=honest) if s.startswith("structure")]
    assert f"another kind of numbers: features.conv1.weight is {name}, not float32" in kind


def test_an_integer_bias_is_looked_at(honest):
    sent = {**honest, "head.hidden.bias": torch.full((32,), 2, dtype=torch.int32)}
    assert any("head.hidden: entropy of the bias is as low as 0 " in s for s in findings(sent))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.float32, torch.bfloat16])
def test_two_values_are_as_orderly_in_any_type(dtype):
    assert inspect({"fc.weight": (drawn(64, 64) > 0).to(dtype)}).inspection.values["minimum"] < 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_an_honest_model_in_another_precision_passes(honest, dtype):
    sent = {name: t.to(dtype) if t.is_floating_point() else t for name, t in honest.items()}
    assert findings(sent, agreed=honest) == ()
    upcast = {name: t.float() if t.is_floating_point() else t for name, t in sent.items()}
    assert findings(upcast, agreed=honest) == ()


@pytest.mark.parametrize("sides", [(3,), (5, 3), (3, 3, 3), (2, 2, 2, 2)])
def test_kernels_of_any_number_of_dimensions_are_looked_at(sides):
    weight = drawn(16, 4, *sides)
    assert findings({"conv.weight": weight}) == ()
    weight[:3] = 0
    weight[(0, 0, *(side // 2 for side in sides))] = 1
    result = findings({"conv.weight": weight})
    assert "conv: 1 of 16 are identity kernels (one entry, zeros around it)" in result
    assert "conv: 2 of 16 are all-zero kernels" in result


@pytest.mark.parametrize("inputs", [2, 4, 7])
def test_small_kernels_are_looked_at_though_their_entropy_is_not_measured(inputs):
    weight = drawn(inputs, inputs, 1, 1)
    records = inspect({"conv.weight": weight})
    assert records.inspection.findings == ()
    assert (records.inspection.values["vectors"], records.inspection.values["skipped"]) == (0, inputs)
    assert "minimum" not in records.inspection.values
    crafted = torch.eye(inputs)[:, :, None, None]
    (result,) = findings({"conv.weight": crafted})
    assert f"{inputs} of {inputs} are identity kernels" in result


def test_a_kernel_of_one_entry_is_no_identity():
    assert findings({"depthwise.weight": drawn(64, 1, 1, 1), "conv.weight": drawn(16, 64, 1, 1)}) == ()


def test_what_no_rule_looks_at_is_counted():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LayerNorm([8, 4, 4]), nn.LSTM(16, 8))
    tensors = {**state(model), "token": torch.zeros(1, 1, 16)}
    tensors["3.weight_ih_l0"] = torch.ones(32, 16)
    records = inspect(tensors)
    scales = ("1.weight", "1.running_mean", "1.running_var")
    assert records.apart == (*scales, "2.weight", "2.bias", "token")
    assert records.inspection.values["apart"] == 6
    layers = {s.split(":")[0] for s in records.inspection.findings}
    assert layers == {"3.weight_ih_l0"}


LARGE = [(25088, 512), (2048, 512), (2048, 1000), (768, 3072), (512, 10)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), LARGE[1:])
def test_large_honest_layers_pass_in_any_precision(inputs, outputs, dtype):
    records = inspect({"head.weight": linear(inputs, outputs).to(dtype)})
    assert records.inspection.findings == ()
    assert 0.85 < records.inspection.values["minimum"] <= 1


def test_the_largest_honest_layer_passes():
    records = inspect({"head.weight": linear(*LARGE[0]).bfloat16()})
    assert records.inspection.findings == ()
    assert records.inspection.values["minimum"] > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_large_crafted_layers_are_found_in_any_precision(dtype):
    """Robbing the Fed with a little noise: no two rows are alike, but their entropy gives them away."""
    rows = torch.full((512, 2048), 1 / 2048) + drawn(512, 2048, scale=5e-6)
    (result,) = findings({"head.weight": rows.to(dtype)})
    assert "entropy of the weight" in result
    sparse = torch.where(drawn(512, 2048, seed=1).abs() < 0.095, 0.0, linear(2048, 512))
    assert any("entropy" in s for s in findings({"head.weight": sparse.to(dtype)}))


def definition(values):
    """The paper's."""
    share = torch.unique((values.double() / 1e-6).round(), return_counts=True)[1].double() / values.numel()
    return -float((share * share.log()).sum()) / math.log(values.numel())


@pytest.mark.parametrize("scale", [1e-5, 1e-4, 0.01, 1.0, 100.0])
def test_up_to_2000_values_the_entropy_is_the_papers(scale):
    values = drawn(2000, scale=scale)
    assert normalized_entropy(values) == pytest.approx(definition(values))


def test_many_values_are_compared_with_what_their_range_can_hold():
    """A million uniform values fill the 20,001 bins of ±0.01 evenly: they are as disordered as can be."""
    values = drawn(1_000_000, scale=0.01).double()
    assert definition(values) < 0.72
    assert normalized_entropy(values) > 0.99
    exact = drawn(1_000_000, scale=0.01).bfloat16()
    assert normalized_entropy(exact, precision=torch.bfloat16) > 0.85 > 0.55 > definition(exact)


ODD = {
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "sparse": lambda t: t.to_sparse(),
    "columns": lambda t: t.to_sparse_csc(),
}


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")
@pytest.mark.parametrize("kind", ODD)
def test_odd_tensors_are_read(honest, kind):
    sent = {**honest, "head.hidden.weight": ODD[kind](honest["head.hidden.weight"])}
    assert findings(sent, agreed=honest) == ()
    sent["head.hidden.weight"] = ODD[kind](torch.ones_like(honest["head.hidden.weight"]))
    assert any("31 of 32 rows repeat" in s for s in findings(sent, agreed=honest))


def unreadable():
    small = torch.ones(4, 4)
    return {
        "meta": torch.empty(4, 4, device="meta"),
        "float8, sparse_coo": small.to_sparse().to(torch.float8_e4m3fn),
        "float4_e2m1fn_x2": torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    }


@pytest.mark.parametrize("kind", ["meta", "float8, sparse_coo", "float4_e2m1fn_x2"])
def test_what_cannot_be_read_is_refused(honest, kind, tmp_path, capsys):
    sent = {**honest, "head.hidden.weight": unreadable()[kind]}
    with pytest.raises(BadValue, match=r"tensor 'head\.hidden\.weight'"):
        dense(sent)
    torch.save(sent, tmp_path / "odd.pt")
    assert run(tmp_path / "odd.pt") == 2
    output = capsys.readouterr()
    assert "odd.pt" in output.err
    assert "turned into float64" in output.err
    assert output.out == ""


def test_safetensors_of_a_type_that_torch_has_not_are_refused(tmp_path):
    header = json.dumps({"a.weight": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    path = tmp_path / "six.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    with pytest.raises(BadFile, match="F6_E2M3"):
        read_weights(path)


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["guard", *map(str, arguments)])
    return stop.value.code


def test_the_page_is_written_first_and_its_folder_made(honest, tmp_path, capsys):
    model, page = tmp_path / "model.safetensors", tmp_path / "new" / "deep" / "page.html"
    write_tensors(model, {**honest, "head.hidden.weight": torch.ones(32, 32)})
    assert run(model, "--report", page, "--json") == 1
    result = json.loads(capsys.readouterr().out)["model"]
    assert result["minimum"] == 0
    assert "features.bn0.running_mean" in result["not_looked_at"]
    assert "not looked at" in page.read_text()
    assert run(model, "--report", model / "page.html", "--json") == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "that can be written" in json.loads(output.err)["error"]["needs"]


def test_the_command_names_what_it_did_not_look_at(honest, tmp_path, capsys):
    model, small = tmp_path / "model.safetensors", tmp_path / "small.safetensors"
    write_tensors(model, honest)
    assert run(model) == 0
    assert (
        "tensors were not looked at, but for values that are not finite: features." in capsys.readouterr().out
    )
    write_tensors(small, {"conv.weight": torch.eye(4)[:, :, None, None]})
    assert run(small, "--report", tmp_path / "page.html") == 1
    assert "4 of 4 are identity kernels" in capsys.readouterr().out
    assert "identity kernels" in (tmp_path / "page.html").read_text()
