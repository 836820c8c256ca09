"""Models of sentences: what attacks rely on, and the same numbers as transformers and as slow twins."""

import importlib.util

import pytest
import torch
from safetensors.torch import save_file

from glasshouse.audit.simulation.pretraining import start_of
from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.interfaces import losses_of, mean_loss
from glasshouse.models import build as models
from glasshouse.models.outline import outline
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.testing.toys import sentence_model
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.wire import Architecture, Batch

WORDS = Vocabulary(size=60, pad=0, end=1)
TOKENS = WORDS.stack([[5, 6, 7], [9, 8, 7, 6, 5]], length=8)
BATCH = Batch(inputs=TOKENS, labels=torch.tensor([0, 1]))
SMALL = {"width": 32, "layers": 2, "heads": 4}
needs_extra = pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="the extra 'text'")


def architecture(name="small_gpt", **arguments):
    return sentence_model(name, WORDS, length=8, classes=3 if name == "bert" else 0, **arguments)


def made(name="small_gpt", **arguments):
    return models.build(architecture(name, **arguments)).eval()


def gradient(model, batch=BATCH):
    parameters = LocalTraining(kind="gradient", batch_size=1).parameters(model)
    return dict(
        zip(parameters, torch.autograd.grad(mean_loss(model, batch), parameters.values()), strict=True)
    )


@needs_extra
@pytest.mark.parametrize(
    ("name", "more"), [("gpt2", {}), ("bert", {}), ("llama", {"key_heads": 2}), ("gpt2", {"rank": 4})]
)
def test_the_forward_pass_is_that_of_transformers(name, more):
    model = made(name, **SMALL, **more)
    real = WORDS.real(TOKENS)
    theirs = model.body(input_ids=TOKENS, attention_mask=real.long()).last_hidden_state
    places = torch.arange(8).expand(2, 8)
    hidden = model.embed(TOKENS, places)
    for layer in range(2):
        hidden = model.through(layer, hidden, places, real)
    torch.testing.assert_close(model.anatomy.close(hidden)[real], theirs[real], rtol=1e-4, atol=1e-5)


@needs_extra
def test_the_loss_is_that_of_transformers_on_one_sentence():
    transformers = pytest.importorskip("transformers")
    model = made("gpt2", **SMALL)
    other = transformers.GPT2LMHeadModel(model.body.config).eval()
    other.transformer.load_state_dict(model.body.state_dict())
    one = TOKENS[:1, :4]
    torch.testing.assert_close(
        losses_of(model, Batch(inputs=one, labels=BATCH.labels[:1]))[0], other(one, labels=one).loss
    )


@pytest.mark.parametrize("name", ["small_gpt", "gpt2", "llama", "bert"])
def test_an_architecture_is_described_without_its_numbers(name):
    if name != "small_gpt":
        pytest.importorskip("transformers", reason="the extra 'text'")
    assert {n: t.shape for n, t in outline(architecture(name, **SMALL)).items()} == {
        n: t.shape for n, t in made(name, **SMALL).state_dict().items()
    }


def test_a_tied_head_has_one_name_and_one_parameter():
    model = made()
    names = [name for name, _ in model.named_parameters()]
    assert list(model.state_dict()) == names
    assert not [name for name in names if name.startswith("head")]
    other = made(width=64)
    models.load(other, {**models.state(other), "body.tokens.weight": torch.zeros(60, 64)})
    assert not other(TOKENS).any()


def test_a_first_token_has_no_gradient_of_its_query():
    model = made()
    rows = {part: model.input_rows(0, gradient(model), parts=(part,)) for part in ("query", "value")}
    x = model.anatomy.blocks[0].attended(model.embed(TOKENS, torch.arange(8).expand(2, 8))).detach()[0, 0]
    far = {}
    for part, matrix in rows.items():
        _, sizes, basis = torch.linalg.svd(matrix.double(), full_matrices=False)
        basis = basis[sizes > 1e-5 * sizes[0]]
        far[part] = float((x - x.double() @ basis.T @ basis).norm() / x.norm())
    assert far["value"] < 1e-3
    assert far["query"] > 0.1


def test_frozen_embeddings_are_not_trained():
    sent = gradient(made(frozen="embeddings"))
    assert not [name for name in sent if "tokens" in name or "positions" in name]
    assert len(sent) == len(gradient(made())) - 2


@needs_extra
def test_adapters_alone_are_trained_and_their_first_matrix_starts_without_gradient():
    model = made("gpt2", **SMALL, rank=4)
    sent = gradient(model)
    assert all("lora_" in name for name in sent)
    assert model.input_rows(0, sent).shape == (4, 32)
    assert not model.input_rows(0, sent).any()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(generator=torch.Generator().manual_seed(0))
    rows = model.input_rows(0, gradient(model)).double()
    assert int(torch.linalg.matrix_rank(rows)) == 4


@pytest.mark.parametrize(
    "arguments",
    [{"frozen": "everything"}, {"width": 30, "heads": 4}, {"layers": 0}],
)
def test_arguments_that_have_no_meaning_are_refused(arguments):
    with pytest.raises(BadValue):
        made(**arguments)


def test_models_and_data_must_be_of_one_kind():
    with pytest.raises(BadValue, match="numbers a layer can take"):
        models.build(sentence_model("mlp", WORDS, length=8, classes=3))
    with pytest.raises(BadValue, match="sentences"):
        models.build(Architecture.of("small_gpt", (1, 8, 8), 3))


@needs_extra
@pytest.mark.parametrize("rank", [0, 4])
def test_weights_come_from_a_file_of_transformers(tmp_path, rank):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel(made("gpt2", **SMALL).body.config)
    tensors = {n: t.clone() for n, t in theirs.state_dict().items() if n != "lm_head.weight"}
    save_file(tensors, tmp_path / "gpt2.safetensors")
    scenario = from_dict(
        {
            "name": "x",
            "data": {"source": "sentences"},
            "model": {"name": "gpt2", **SMALL, "rank": rank, "weights": str(tmp_path / "gpt2.safetensors")},
            "attacks": [{"name": "label_inference"}],
            "audit": {"metrics": ["exact_sentences"]},
        }
    )
    agreed = architecture("gpt2", **SMALL, rank=rank)
    model = models.build(agreed)
    models.load(model, start_of(scenario, agreed, None, Rng.root(0)).tensors)
    real = WORDS.real(TOKENS)
    want = theirs.eval()(TOKENS, attention_mask=real.long()).logits
    torch.testing.assert_close(model.eval()(TOKENS)[real], want[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["small_gpt", "gpt2"])
def test_gradients_of_single_sentences_are_those_of_a_loop(name):
    pytest.importorskip("opacus", reason="the extra 'dp'")
    if name == "gpt2":
        pytest.importorskip("transformers", reason="the extra 'text'")
    from opacus import GradSampleModule

    from glasshouse.federation.defenses.dp_sgd import _together, _trained
    from glasshouse.federation.defenses.per_example import own_layers, prepare_model

    model = made(name, **SMALL)
    names = LocalTraining(kind="gradient", batch_size=1).parameters(model).keys()
    work = prepare_model(model, trained=names, dropout=False)
    for layer in own_layers(work):
        work.get_submodule(layer).training = True
    trained = [n for n, p in work.named_parameters() if p.requires_grad]
    assert len(trained) == len(_trained(work))
    gradients = _together(GradSampleModule(work, loss_reduction="sum"), BATCH, 1.0)
    for i in range(2):
        alone = gradient(model, BATCH.pick(torch.tensor([i])))
        for n, each in zip(trained, gradients, strict=True):
            torch.testing.assert_close(each[i], alone[n], rtol=1e-3, atol=1e-6)


def test_the_mean_loss_is_the_mean_of_the_losses():
    model = made()
    torch.testing.assert_close(mean_loss(model, BATCH), losses_of(model, BATCH).mean())


def test_the_loss_is_that_of_a_sentence_without_padding():
    model = made()
    alone = losses_of(model, Batch(inputs=TOKENS[:1, :4], labels=BATCH.labels[:1]))
    torch.testing.assert_close(losses_of(model, BATCH)[:1], alone)
