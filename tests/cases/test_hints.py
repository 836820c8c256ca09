"""Each input that cannot be audited gets the hint that answers its own question; the others work."""

import collections
import copy
import dataclasses
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.errors import BadFile, BadScenario, BadValue, Inapplicable
from glasshouse.modalities.row import Column, Row
from glasshouse.models.memory import keep
from glasshouse.registry import import_factory
from glasshouse.settings import Optimizer, Training

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
LABELS = np.arange(60) % 4


def mine(**changes):
    return {
        "name": "mine", "data": {"auxiliary": 15, "heldout": 15}, "federation": {"clients": 3},
        "attacks": ["label_inference"], "audit": {"distractors": 9}, **changes,
    }  # fmt: skip


def net(outputs=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, outputs))


class Wrapped(nn.Module):
    """A network whose output is wrapped."""

    def __init__(self, wrap):
        super().__init__()
        self.body, self.head, self.wrap = nn.Linear(64, 8), nn.Linear(8, 4), wrap

    def forward(self, x):
        return self.wrap(self.head(self.body(x.flatten(1)).relu()))


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor


Pair = collections.namedtuple("Pair", "scores aux")
WRAPS = {
    "dictionary": lambda z: {"logits": z, "features": z},
    "tuple": lambda z: (z, z),
    "list": lambda z: [z],
    "named tuple": lambda z: Pair(z, z),
    "object": Answer,
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_wrapped_outputs_are_unwrapped(wrap):
    gh.check(mine(), data=(IMAGES, LABELS), model=Wrapped(wrap))


def test_outputs_elsewhere_are_asked_for_by_their_names():
    with pytest.raises(
        BadScenario, match=r"got a dictionary of 'out', 'aux'; say where they are: glasshouse"
    ):
        gh.check(mine(), data=(IMAGES, LABELS), model=Wrapped(lambda z: {"out": z, "aux": z}))
    with pytest.raises(BadValue, match=r"got +a dictionary of 'out'\n"):
        gh.view(Wrapped(lambda z: {"out": z}), [], input_shape=(1, 8, 8))


class Features(nn.Module):
    """Features before the logits that are computed from them."""

    def __init__(self, wrap):
        super().__init__()
        self.body, self.head, self.wrap = nn.Linear(64, 4), nn.Linear(4, 4), wrap

    def forward(self, x):
        features = self.body(x.flatten(1)).relu()
        return self.wrap(features, self.head(features))


def test_features_before_logits_are_not_taken_for_them():
    pair = Features(lambda f, z: (f, z))
    with pytest.raises(BadScenario, match=r"logits=lambda output: output\[1\]\)"):
        gh.check(mine(), data=(IMAGES, LABELS), model=pair)
    gh.check(mine(), data=(IMAGES, LABELS), model=gh.adapt(pair, logits=lambda output: output[1]))
    named = collections.namedtuple("Named", "features logits")
    assert torch.equal(*(gh.adapt(net)(torch.ones(1, 64)) for net in _two(named)))


def _two(named):
    """The same network with its logits by name and alone."""
    first = Features(named)
    second = copy.deepcopy(first)
    second.wrap = lambda f, z: z
    return first, second


class Cut(nn.Module):
    """A backbone under ``no_grad``, as feature extractors are written."""

    def __init__(self, way):
        super().__init__()
        self.body, self.head, self.way = nn.Linear(64, 8), nn.Linear(8, 4), way

    def forward(self, x):
        return self.head(self.way(self.body, x.flatten(1)))


def under_no_grad(body, x):
    with torch.no_grad():
        return body(x)


def by_numpy(body, x):
    return body(torch.from_numpy(x.numpy()))


@pytest.mark.parametrize(("way", "words"), [(under_no_grad, "no way from the example"), (by_numpy, "numpy")])
def test_networks_that_cut_the_way_to_the_example_are_known_beforehand(way, words):
    scenario = {**mine(), "attacks": ["label_inference", "inverting_gradients"]}
    (refused,) = gh.check(scenario, data=(IMAGES, LABELS), model=Cut(way), probe=False).refusals
    assert words in refused[1].got


def test_complex_weights_are_refused_by_name():
    network = net()
    network.extra = nn.Parameter(torch.zeros(2, dtype=torch.cfloat))
    with pytest.raises(BadValue, match=r"complex ones: extra"):
        gh.check(mine(), data=(IMAGES, LABELS), model=network)


@pytest.mark.parametrize("outputs", [4, 10, 1000])
def test_more_logits_than_classes_work(outputs):
    gh.check(mine(), data=(IMAGES, LABELS), model=net(outputs))


@pytest.mark.parametrize(
    ("outputs", "labels", "words"),
    [
        (1, LABELS % 2, 'set data.task = "multilabel"'),
        (3, LABELS, "labels go up to 3: number the classes from 0"),
        (4, LABELS + 1, "labels go up to 4: number the classes from 0"),
    ],
)
def test_fewer_logits_than_classes_say_what_to_change(outputs, labels, words):
    with pytest.raises(BadScenario, match=words):
        gh.check(mine(), data=(IMAGES, labels), model=net(outputs))


def test_one_logit_works_as_the_hint_says():
    data = {"auxiliary": 15, "heldout": 15, "task": "multilabel"}
    gh.check(mine(data=data, attacks=["linear_input"]), data=(IMAGES, LABELS % 2), model=net(1))
    with pytest.raises(BadValue, match=r"task=Multilabel\(targets=1\) for one logit"):
        gh.view(net(1), [], input_shape=(1, 8, 8))


def test_lazy_layers_are_named():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    for run in (
        lambda: gh.check(mine(), data=(IMAGES, LABELS), model=lazy),
        lambda: gh.view(lazy, [], input_shape=(1, 8, 8)),
    ):
        with pytest.raises(
            BadValue, match=r"never called: 1\.weight, 1\.bias\n +fix +call net\(example\) once"
        ):
            run()
    lazy(torch.zeros(1, 1, 8, 8))
    gh.check(mine(), data=(IMAGES, LABELS), model=lazy)


class TwoHeads(nn.Module):
    """A second head that the loss does not reach."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(64, 8), nn.Linear(8, 4), nn.Linear(8, 7)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())


def test_parameters_without_a_gradient_are_zero():
    two, picture = TwoHeads(), torch.rand(1, 1, 8, 8)
    loss = F.cross_entropy(two(picture), torch.tensor([2]))
    slopes = torch.autograd.grad(loss, list(two.parameters()), allow_unused=True)
    named = {n: g for (n, _), g in zip(two.named_parameters(), slopes, strict=True) if g is not None}
    for update in (slopes, named):
        (claim,) = gh.attack("linear_input")(gh.view(two, update, input_shape=(1, 8, 8)))
        assert float((claim.inputs - picture).abs().max()) < 1e-4
    del named["head.weight"]
    with pytest.raises(BadValue, match=r"'head\.weight' is missing"):
        gh.view(two, named, input_shape=(1, 8, 8))


class TwoInputs(nn.Module):
    """Needs a mask beside the picture."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, x, mask):
        return self.head(x.flatten(1) * mask)


def test_a_second_input_is_what_the_hint_is_about():
    with pytest.raises(BadScenario, match="audit a network of one input; wrap one of several"):
        gh.check(mine(), data=(IMAGES, LABELS), model=TwoInputs())
    with pytest.raises(BadValue, match="audit a network of one input; wrap one of several"):
        gh.view(TwoInputs(), [], input_shape=(1, 8, 8))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, bool, np.float16, np.float64])
def test_types_that_have_a_meaning_are_read(dtype):
    scale = 255 if np.dtype(dtype).kind == "f" else 1
    gh.check(
        mine(attacks=["linear_input"], model={"name": "mlp"}), data=((IMAGES / scale).astype(dtype), LABELS)
    )


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (IMAGES.astype(np.int16), r"\(x - low\) / \(high - low\)"),
        (IMAGES.astype(np.int64), r"\(x - low\) / \(high - low\)"),
        (IMAGES.astype(np.complex64), "take magnitude or phase"),
        (IMAGES.astype(np.float32), "divide by 255"),
        (IMAGES.astype(np.float32) * 200, "divide by 65,535"),
        (IMAGES.astype(np.float32) / 127.5 - 1, r"\(x - low\) / \(high - low\); where a normalisation"),
        (np.where(IMAGES > 200, np.nan, 0.5), "leave those images out"),
    ],
)
def test_no_hint_destroys_pixels(images, words):
    with pytest.raises(BadFile) as caught:
        gh.check(mine(), data=(images, LABELS), model=net())
    assert "astype" not in caught.value.fix
    with pytest.raises(BadFile, match=words):
        gh.check(mine(), data=(images, LABELS), model=net())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (r"C:\data\scans.npz", "npz"), ("C:/pictures", "folder"), (r"\\server\share\rows.csv", "table"),
        ("D:pictures", "folder"), ("/data/all.zip", "zip"), ("../pictures", "folder"),
    ],
)  # fmt: skip
def test_a_path_alone_is_told_its_kind(path, kind):
    with pytest.raises(BadScenario) as caught:
        gh.check(mine(data={"source": path, "auxiliary": 15}, model={"name": "mlp"}))
    assert f'write "{kind}:{path}"' in str(caught.value)


@pytest.mark.parametrize("path", [r"C:\nets\my.py", r"C:\nets\my", "nets/my.py", "my.py"])
def test_a_path_to_code_is_told_the_module(path):
    with pytest.raises(BadFile, match="write my:Net, and run from"):
        import_factory(f"{path}:Net", "model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_and_updates_of_another_precision_are_read(dtype):
    gh.check(mine(), data=(IMAGES, LABELS), model=net().to(dtype))
    plain, picture = net(), torch.rand(1, 1, 8, 8)
    slopes = torch.autograd.grad(F.cross_entropy(plain(picture), torch.tensor([2])), list(plain.parameters()))
    seen = gh.view(plain, [g.to(dtype) for g in slopes], input_shape=(1, 8, 8))
    assert gh.attack("label_inference")(seen)[0].counts.tolist() == [0, 0, 1, 0]


class Mixing(nn.Module):
    """Subtracts the mean of the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(64, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x.flatten(1))
        return self.head((x - x.mean(0)).relu())


def test_check_refuses_dp_sgd_on_a_network_that_mixes_examples():
    private = [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}]
    asked = mine(
        defenses=private,
        data={"auxiliary": 15, "heldout": 15, "examples": 4},
        federation={"clients": 3, "protocol": "fedavg", "batch_size": 2},
    )
    gh.check(asked, data=(IMAGES, LABELS), model=net())
    with pytest.raises(BadScenario, match=r"defenses\[0\] +needs a network in which no example influences"):
        gh.check(asked, data=(IMAGES, LABELS), model=Mixing())


NOTEBOOK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.scale = nn.Linear(64, 4), 1.0
    def forward(self, x):
        return self.head(x.flatten(1))
"""


def names_of(*edits):
    """The names of a network that was defined in a notebook, and again after each edit."""
    for edit in ((), *edits):
        cell = NOTEBOOK.replace(*edit) if edit else NOTEBOOK
        defined = {"nn": nn, "__name__": "__main__"}
        exec(cell, defined)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield keep(defined["Net"]())


def test_a_network_that_was_changed_in_a_notebook_is_another_one():
    first, same, forward, setting = names_of(
        ("", ""), ("flatten(1)", "flatten(1) - x.mean()"), ("1.0", "2.0")
    )
    assert first == same
    assert len({first, forward, setting}) == 3


NO_NETWORKS = {
    "class": (nn.Linear, r"build it: Linear\(...\)"),
    "weights": (net().state_dict(), "load_state_dict"),
    "function": (lambda x: x, "torch.nn.Module"),
}


@pytest.mark.parametrize("name", NO_NETWORKS)
def test_what_is_no_network_is_refused(name):
    given, words = NO_NETWORKS[name]
    with pytest.raises(BadValue, match=words):
        gh.check(mine(), data=(IMAGES, LABELS), model=given)


LABELLED = {
    "categories": (np.array(list("abcd"), dtype=object)[LABELS], "numpy.unique"),
    "missing": (np.where(LABELS == 0, None, LABELS), "without a label"),
    "not a number": (np.where(LABELS == 0, np.nan, LABELS), "whose target is missing"),
    "too few": (LABELS[:50], "the labels of these examples"),
    "ignored": (np.where(LABELS == 3, -100, LABELS), "leave out what the loss ignores"),
    "floats": (LABELS.astype(float), "classes are integers"),
    "one-hot": (np.eye(4, dtype=int)[LABELS], "argmax"),
}


@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_other_forms_say_what_to_do(name):
    labels, words = LABELLED[name]
    with pytest.raises((BadFile, BadScenario, BadValue)) as caught:
        gh.check(mine(), data=(IMAGES, labels), model=net(), probe=False)
    assert words in str(caught.value)


def test_settings_are_given_by_name_and_the_names_are_listed():
    with pytest.raises(BadValue, match=r"got +'adam'\n +fix +Optimizer\(name='adam'\)"):
        Optimizer("adam")
    with pytest.raises(BadValue, match=r"needs +one of name, momentum, weight_decay"):
        Optimizer(lr=0.1)


@pytest.mark.parametrize(
    ("used", "given", "words"),
    [
        (lambda x: x / 255, lambda x: x, "divided by 255"),
        (lambda x: x, lambda x: x / 255, "times 255"),
        (lambda x: (x / 255 - 0.5) / 0.5, lambda x: x / 255, r"normalize=\(0.5, 0.5\)"),
    ],
)
def test_the_scale_of_pictures_is_named_where_it_is_the_cause(used, given, words):
    """Nothing fitted, and a loss of triplets was called likely."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    pictures, labels = torch.randint(0, 256, (2, 1, 8, 8)).float(), torch.tensor([3, 4])
    update = torch.autograd.grad(F.cross_entropy(net(used(pictures)), labels), list(net.parameters()))
    seen = gh.view(net, update, input_shape=(1, 8, 8), examples=2)
    best = gh.explain(seen, examples=(given(pictures), labels.int()))[0]
    assert re.search(words, best.words)
    assert best.reproduced
    with pytest.raises(BadValue, match=r"got +torch.uint8, up to 25.\n.*inputs / 255"):
        gh.explain(seen, examples=(pictures.to(torch.uint8), labels))


@pytest.mark.parametrize("key", ["frozen", "fixed", "personal"])
def test_a_pattern_that_names_nothing_is_refused_in_a_view(key):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    update = [torch.zeros_like(p) for p in net.parameters()]
    training = Training(mode="training", **{key: ("bn*",)})
    with pytest.raises(BadValue, match=rf"training\.{key}: patterns .*\n +got +'bn.'\n +fix +its layers: 0"):
        gh.view(net, update, input_shape=(1, 8, 8), training=training)


@pytest.mark.parametrize("attack", ["linear_input", "label_inference"])
def test_a_network_that_is_one_layer_is_told_to_be_wrapped(attack):
    table = Row(columns=tuple(Column(name=f"c{i}", kind="continuous") for i in range(3)))
    layer, row = nn.Linear(3, 2), torch.rand(1, 3)
    gradient = torch.autograd.grad(F.cross_entropy(layer(row), torch.tensor([1])), layer.parameters())
    with pytest.raises(Inapplicable, match=r"nn.Sequential\(net\)"):
        gh.attack(attack)(gh.view(layer, gradient, inputs=table))
    assert gh.attack(attack)(gh.view(nn.Sequential(layer), gradient, inputs=table))


def test_check_says_that_an_attack_reads_updates_of_one_example():
    """It was valid, and the audit ended with a refusal for every client."""
    several = mine(
        attacks=["linear_input"], model={"name": "mlp"}, data={"examples": 4, "auxiliary": 15, "heldout": 15}
    )
    several["federation"] = {"clients": 3, "batch_size": 4}
    with pytest.raises(BadScenario, match="exactly 1 example; got updates of 4 examples"):
        gh.check(several)
    both = {**several, "attacks": ["linear_input", "label_inference"]}
    assert [refusal.got for _, refusal in gh.check(both).refusals] == ["updates of 4 examples"]
    several["federation"]["batch_size"] = 1
    gh.check(several)
