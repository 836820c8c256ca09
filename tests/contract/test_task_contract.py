"""Our tasks fulfil the contract that plug-ins are tested with."""

import pytest
import torch
from torch import nn

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.multilabel import Multilabel
from glasshouse.tasks.next_token import NextToken
from glasshouse.tasks.reconstruction import Reconstruction
from glasshouse.tasks.regression import Regression
from glasshouse.tasks.segmentation import Segmentation
from glasshouse.testing.task_contract import TaskContract
from glasshouse.tokens.vocabulary import Vocabulary

WORDS = Vocabulary(size=20, pad=0, end=1)
PICTURES = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
SENTENCES = WORDS.stack([[5, 6, 7], [8, 9], [5], [6, 7, 8, 9], [5, 5], [9, 8, 7]], length=6)
CLASSES = torch.tensor([0, 2, 1, 2, 0, 2])
CASES = {
    "classification": (Classification(classes=3), CLASSES, PICTURES),
    "classification weighted": (
        Classification(classes=3, weights=(1.0, 2.0, 0.5), smoothing=0.1),
        CLASSES,
        PICTURES,
    ),
    "next_token": (NextToken(vocabulary=WORDS, length=6, classes=3), CLASSES, SENTENCES),
    "multilabel": (
        Multilabel(targets=4, weights=(1.0, 2.0, 3.0, 4.0)),
        torch.arange(24).reshape(6, 4) % 3 % 2,
        PICTURES,
    ),
    "multilabel one": (Multilabel(), torch.tensor([0, 1, 1, 0, 1, 1]), PICTURES),
    "regression": (Regression(targets=2), torch.linspace(-1, 1, 12).reshape(6, 2), PICTURES),
    "regression huber": (
        Regression(loss_name="huber", delta=0.3, spread=2.0),
        torch.linspace(-1, 1, 6),
        PICTURES,
    ),
    "regression absolute": (Regression(loss_name="absolute"), torch.linspace(-1, 1, 6), PICTURES),
    "reconstruction": (Reconstruction(size=(1, 4, 4), mean=0.5, std=0.5), CLASSES, PICTURES),
    "reconstruction binary": (Reconstruction(size=(1, 4, 4), criterion="binary"), CLASSES, PICTURES),
    "reconstruction variational": (
        Reconstruction(size=(1, 4, 4), criterion="absolute", reduce="sum", latent=3, kl=0.1),
        CLASSES,
        PICTURES,
    ),
    "segmentation": (
        Segmentation(classes=3, positions=(4, 4)),
        (PICTURES[:, 0] * 2.99).long().index_fill(0, torch.tensor([5]), -1),
        PICTURES,
    ),
}


def test_every_registered_task_is_here():
    assert {name.split()[0] for name in CASES} == set(registry.names("tasks"))


class TestTask(TaskContract):
    @pytest.fixture(params=sorted(CASES))
    def case(self, request):
        return CASES[request.param]

    @pytest.fixture
    def task(self, case):
        return case[0]

    @pytest.fixture
    def labels(self, case):
        return case[1]

    @pytest.fixture
    def inputs(self, case):
        return case[2]

    @pytest.fixture
    def outputs(self, task):
        shape = task.outputs
        return torch.randn(6, *shape, generator=torch.Generator().manual_seed(1))


def outputs_for(task):
    return torch.randn(6, *task.outputs, generator=torch.Generator().manual_seed(1))


def test_losses_are_those_of_torch():
    weight = torch.tensor([1.0, 2.0, 0.5])
    task = Classification(classes=3, weights=(1.0, 2.0, 0.5), smoothing=0.1)
    theirs = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1)(outputs_for(task), CLASSES)
    torch.testing.assert_close(task.loss(outputs_for(task), CLASSES, PICTURES), theirs)
    task, labels, _ = CASES["multilabel"]
    theirs = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(task.weights))(outputs_for(task), labels.float())
    torch.testing.assert_close(task.loss(outputs_for(task), labels, PICTURES), theirs)
    for name, loss in (("regression", nn.MSELoss()), ("regression huber", nn.HuberLoss(delta=0.3))):
        task, labels, _ = CASES[name]
        wide = labels.reshape(6, -1)
        torch.testing.assert_close(
            task.loss(outputs_for(task), labels, PICTURES), loss(outputs_for(task), wide)
        )
    task, labels, _ = CASES["segmentation"]
    known = labels[:5]
    torch.testing.assert_close(
        task.loss(outputs_for(task)[:5], known, PICTURES), nn.CrossEntropyLoss()(outputs_for(task)[:5], known)
    )


def test_a_network_with_one_number_per_example_fits_one_target():
    for task in (Regression(), Multilabel()):
        assert task.accepts((1,))
        assert task.accepts(())
        assert not task.accepts((2,))
    assert Segmentation(classes=2).accepts((2, 28, 30))
    assert not Segmentation(classes=2).accepts((3, 28, 30))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Classification(classes=1),
        lambda: Classification(classes=3, weights=(1.0,)),
        lambda: Multilabel(targets=0),
        lambda: Regression(spread=0.0),
        lambda: Reconstruction(size=()),
        lambda: Reconstruction(size=(1, 4, 4), criterion="other"),
        lambda: Regression(loss_name="other"),
        lambda: Segmentation(classes=2, positions=(0, 4)),
    ],
)
def test_tasks_that_mean_nothing_are_refused(make):
    with pytest.raises(BadValue, match="task"):
        make()


def test_a_variational_autoencoder_is_trained_by_the_loss_that_people_write():
    """Mean squared error, and the divergence as -0.5 mean(1 + logvar - mu² - exp(logvar))."""
    task = Reconstruction(size=(1, 4, 4), mean=0.5, std=0.5, latent=3, kl=0.05)
    outputs = outputs_for(task)
    rebuilt, means, logs = outputs[:, :16], outputs[:, 16:19], outputs[:, 19:]
    theirs = nn.MSELoss()(rebuilt, (PICTURES.flatten(1) - 0.5) / 0.5)
    theirs = theirs - 0.05 * 0.5 * (1 + logs - means**2 - logs.exp()).mean()
    torch.testing.assert_close(task.loss(outputs, CLASSES, PICTURES), theirs)


def test_outputs_that_are_no_example_are_refused_by_their_size():
    task = Reconstruction(size=(1, 4, 4), latent=3)
    assert Reconstruction(size=(1, 4, 4)).accepts((1, 4, 4))
    assert not task.accepts((1, 4, 4))
    with pytest.raises(BadValue, match=r"16 rebuilt numbers, and 3 means"):
        task.losses(torch.zeros(6, 16), CLASSES, PICTURES)


def test_one_logit_for_two_classes_names_the_way_out():
    assert "adapt(net" in Multilabel().instead
    assert not Multilabel(targets=2).instead
