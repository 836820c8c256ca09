"""What is read of a known sentence and of the embedding's rows, alone and through an audit."""

import pytest
import torch

from glasshouse.attacks.text.embedding_rows import EmbeddingRows
from glasshouse.attacks.text.projres import ProjRes
from glasshouse.audit.run import audit
from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite
from glasshouse.tasks.classification import Classification
from glasshouse.testing.toys import toy
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.transcript.grants import Grants
from glasshouse.wire import Architecture, Batch

WORDS = Vocabulary(size=300, pad=0, end=1)

CLASSES = Classification(classes=10)


def played(**changes):
    arguments = {"width": 64, **changes.pop("arguments", {})}
    fixed = {"model": "small_gpt", "vocabulary": WORDS, "examples": 2, "clients": 4}
    return toy(**{**fixed, "arguments": arguments, **changes})


def words(rows):
    return {t for row in rows for t in row.tolist() if t > 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"task": CLASSES},
        {"protocol": "fedavg", "local_epochs": 2, "learning_rate": 0.01},
        {"defenses": (GaussianNoise(std=1e-5),)},
    ],
)
def test_rows_that_moved_are_the_tokens_that_occurred(changes):
    run = played(**changes)
    (claim,) = EmbeddingRows().run(run.view(client=1), rng=Rng.root(0))
    assert set(claim.ids.tolist()) == words(run.setting.private.inputs[2:4])


def test_rows_under_loud_noise_name_nobody():
    run = played(defenses=(GaussianNoise(std=10.0),))
    (claim,) = EmbeddingRows().run(run.view(client=1), rng=Rng.root(0))
    assert len(claim.ids) == 0


def test_frozen_embeddings_have_no_rows():
    with pytest.raises(Inapplicable, match="gradient of the tokens' embedding"):
        EmbeddingRows().run(played(arguments={"frozen": "embeddings"}).view(client=0), rng=Rng.root(0))


@pytest.mark.parametrize("task", [None, CLASSES])
def test_a_known_sentence_is_found_at_the_client_that_has_it(task):
    run = played(task=task)
    for owner in range(4):
        known = Batch(
            inputs=run.setting.private.inputs[2 * owner : 2 * owner + 1], labels=torch.zeros(1).long()
        )
        view = run.view(client=None, grants=Grants(challenge=known))
        (claim,) = ProjRes().run(view, rng=Rng.root(0))
        assert claim.decisions.tolist() == [client == owner for client in range(4)]
        assert int(claim.scores.argmax()) == owner


def test_a_full_span_says_nothing_about_anybody():
    run = played(arguments={"width": 8}, examples=12)
    known = Batch(inputs=run.setting.private.inputs[:1], labels=torch.zeros(1).long())
    (claim,) = ProjRes().run(run.view(client=None, grants=Grants(challenge=known)), rng=Rng.root(0))
    assert not bool(claim.decisions.any())


def test_they_read_sentences_alone():
    pictures = Architecture.of("mlp", (1, 8, 8), 10)
    for attack in (EmbeddingRows(), ProjRes()):
        with pytest.raises(Inapplicable, match="a model that reads sentences"):
            attack.check_model(pictures)


@pytest.mark.parametrize(
    ("attack", "metric", "tables"),
    [
        ("embedding_rows", "tokens_named", {"data": {"examples": 2}}),
        ("projres", "auc", {"data": {"members": 3, "examples": 2}, "grants": {"challenge": True}}),
    ],
)
def test_an_audit_finds_the_leak_with_its_control(tmp_path, attack, metric, tables):
    data = {"source": "sentences", "auxiliary": 120, "heldout": 80, **tables.pop("data", {})}
    scenario = from_dict(
        {
            "name": "letters",
            "data": {**data, "images_are_public": False},
            "model": {"name": "small_gpt", "width": 64},
            "federation": {"clients": 6, "batch_size": 2},
            "attacks": [{"name": attack}],
            "audit": {"metrics": [metric], "victims": 6, "distractors": 60, "utility": False},
            **tables,
        }
    )
    members = (Member(scenario=scenario),)
    result = audit(Suite(name="letters", members=members, given="letters"), out=tmp_path / "run", jobs=1)
    (finding,) = result.findings
    assert finding.control.passed
    assert finding.value > 0.95
