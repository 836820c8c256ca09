"""Every registered model keeps the contract of models."""

import importlib.util

import pytest

from glasshouse import registry
from glasshouse.testing.model_contract import ModelContract, TextModelContract
from glasshouse.testing.toys import sentence_model
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.wire import Architecture

COLOUR, GREY = (3, 32, 32), (1, 8, 8)
CASES = {
    "convnet": (GREY, {"width": 4}),
    "lenet5": (COLOUR, {}),
    "lenet_dropout": (COLOUR, {}),
    "lenet_sigmoid": (GREY, {}),
    "maui_cnn": (COLOUR, {"width": 4, "hidden": 16}),
    "mlp": (GREY, {}),
    "resnet18": (GREY, {"width": 4}),
    "shufflenet_v2": (COLOUR, {}),
    "shallow_cnn": (COLOUR, {}),
    "imprint": (GREY, {"bins": 8, "inner": "mlp"}),
    "loki": (GREY, {"groups": 2, "bins": 8, "inner": "mlp"}),
    "scale_mia_cnn": (COLOUR, {}),
    "scale_mia_alexnet": (COLOUR, {}),
    "scale_mia_vgg": (COLOUR, {}),
    "scale_mia_resnet": (COLOUR, {}),
    "scale_mia_vit": (COLOUR, {}),
}
SMALL = {"width": 32, "layers": 2, "heads": 4}
SENTENCES = {
    "small_gpt": {"width": 32},
    "small_gpt class": {"width": 32, "frozen": "embeddings"},
    "gpt2": SMALL,
    "gpt2 class": SMALL,
    "bert": SMALL,
    "llama": {**SMALL, "key_heads": 2},
}
TORCHVISION = {"resnet50": (COLOUR, {}), "vgg11_bn": (COLOUR, {}), "vit_b_32": ((3, 224, 224), {})}


DOCUMENTS = {"boosted_trees", "coefficients", "no_model"}  # not networks: no logits to differentiate


def test_every_registered_model_is_here():
    networks = set(CASES) | set(TORCHVISION) | {name.split()[0] for name in SENTENCES}
    assert networks | DOCUMENTS == set(registry.names("models"))


class TestModel(ModelContract):
    @pytest.fixture(params=sorted({**CASES, **TORCHVISION}))
    def architecture(self, request):
        if request.param in TORCHVISION and not importlib.util.find_spec("torchvision"):
            pytest.skip("needs torchvision: the extra 'vision'")
        shape, arguments = {**CASES, **TORCHVISION}[request.param]
        return Architecture.of(request.param, shape, 10, arguments)


class TestTextModel(TextModelContract):
    @pytest.fixture(params=sorted(SENTENCES))
    def architecture(self, request):
        name = request.param.split()[0]
        if name != "small_gpt":
            pytest.importorskip("transformers", reason="the extra 'text'")
        words = Vocabulary(size=60, pad=0, end=1, start=2 if name == "bert" else -1)
        classes = 3 if name == "bert" or request.param.endswith("class") else 0
        return sentence_model(name, words, length=10, classes=classes, **SENTENCES[request.param])
