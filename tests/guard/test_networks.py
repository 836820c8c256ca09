"""A user's own network goes to the guard as it is, with outputs of any form; else it is refused by name."""

import warnings

import pytest
import torch
from torch import nn

import glasshouse as gh
from glasshouse.errors import BadValue
from glasshouse.tasks.multilabel import Multilabel

CLASSES, SIDE = 4, 8
INPUTS = torch.rand(48, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(48) % CLASSES


class Named(nn.Module):
    """Logits in a dictionary, in a tuple, or alone."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.body = form, nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES))

    def forward(self, x: torch.Tensor) -> object:
        """The logits in their form."""
        logits = self.body(x)
        return {"dictionary": {"logits": logits}, "tuple": (logits, x)}.get(self.form, logits)


class Own(nn.Module):
    """Weights that belong to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(SIDE * SIDE, CLASSES) / SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return x.flatten(1) @ self.matrix


class Silent(nn.Linear):
    """A forward pass that raises without a word."""

    def __init__(self) -> None:
        super().__init__(SIDE * SIDE, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Nothing."""
        raise NotImplementedError


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize(
    "network",
    [
        Named("dictionary"),
        Named("tuple"),
        Named("alone").bfloat16(),
        Named("alone").double(),
        Own(),
        nn.DataParallel(Named("alone")),
    ],
    ids=["dictionary", "tuple", "bfloat16", "float64", "own weights", "wrapped"],
)
def test_an_honest_network_of_any_form_is_judged_on_examples(network):
    seen = gh.guard(network, data=(INPUTS, LABELS))
    assert seen.verdict == "passed"
    assert seen.judged is not None
    assert not seen.judged.unseen


def test_one_logit_is_judged_by_its_task():
    network = flat(nn.Linear(SIDE * SIDE, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(BadValue, match=r"task=Multilabel\(targets=1\)"):
        gh.guard(network, data=(INPUTS, LABELS % 2))
    task = Multilabel(targets=1)
    assert gh.guard(network, data=(INPUTS, (LABELS % 2).float()), task=task).verdict == "passed"


def test_a_crafted_network_of_any_form_is_refused():
    class Crafted(nn.Module):
        """Robbing the Fed's first layer: equal rows, graded biases; the logits are in a dictionary."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(SIDE * SIDE, 64), nn.Linear(64, CLASSES)
            with torch.no_grad():
                self.first.weight.fill_(1 / SIDE**2)
                self.first.bias.copy_(-torch.linspace(0.4, 0.6, 64))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            """Logits by name."""
            return {"logits": self.last(torch.relu(self.first(x.flatten(1))))}

    assert gh.guard(Crafted(), data=(INPUTS, LABELS)).verdict == "refused"


def untrainable() -> dict[str, tuple[nn.Module, str]]:
    """Networks that the guard cannot try on pictures of four classes, and what the error says of them."""
    flat_one = flat(nn.Linear(SIDE * SIDE, CLASSES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both forms are on their way out of torch
        scripted = torch.jit.trace(flat_one, INPUTS[:1])
        quantized = torch.ao.quantization.quantize_dynamic(flat_one, {nn.Linear})
    return {
        "lazy": (flat(nn.LazyLinear(CLASSES)), "lazy ones that were never called"),
        "meta": (flat(nn.Linear(SIDE * SIDE, CLASSES)).to("meta"), "weights on the meta device"),
        "scripted": (scripted, "TorchScript"),
        "quantized": (quantized, "quantized ones"),
        "frozen": (flat(nn.Linear(SIDE * SIDE, CLASSES)).requires_grad_(False), "requires_grad = False"),
        "no forward": (nn.ModuleDict({"a": nn.Linear(2, 2)}), "NotImplementedError"),
        "silent": (Silent(), "NotImplementedError"),
        "other size": (flat(nn.Linear(3, CLASSES)), "RuntimeError"),
        "two classes": (flat(nn.Linear(SIDE * SIDE, 2)), "classes from 0 to 3"),
    }


@pytest.mark.parametrize("kind", list(untrainable()))
def test_what_cannot_be_trained_on_the_examples_is_refused_by_name(kind):
    network, got = untrainable()[kind]
    with pytest.raises(BadValue) as caught:
        gh.guard(network, data=(INPUTS, LABELS))
    assert got in caught.value.got
    assert caught.value.fix
