"""Class inversion from FedAvg: whose classes they are, and images that point where the update does."""

import pytest
import torch

from glasshouse.attacks.inversion.class_inversion import ClassInversion, classes_of_clients
from glasshouse.audit.attacking.needs import foresee_refusal
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.setting import Setting
from glasshouse.models import build as models
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.testing.toys import SHAPE, Recorder
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Architecture, Batch, Terms

CLASSES, EACH = 6, 8


def federation(targets=4, seed=0):
    """Two clients with two of four private classes each; the images of a class are alike."""
    draws = torch.Generator().manual_seed(seed)
    means = torch.rand(4, *SHAPE, generator=draws)
    labels = torch.arange(4).repeat_interleave(EACH)
    inputs = (means[labels] + 0.05 * torch.randn(len(labels), *SHAPE, generator=draws)).clamp(0, 1)
    architecture = Architecture.of("shallow_cnn", SHAPE, CLASSES, {"width": 16})
    setting = Setting(
        terms=Terms(
            protocol="fedavg", architecture=architecture, sends="delta", clients=2, cohort=2, batch_size=EACH,
            local_epochs=2, learning_rate=1e-2, targets=targets,
        ),
        rounds=2,
        private=Batch(inputs=inputs, labels=labels),
        shards=(torch.arange(2 * EACH), torch.arange(2 * EACH, 4 * EACH)),
        start=models.state(models.build(architecture, rng=Rng.root(seed))),
        build=models.build,
    )  # fmt: skip
    log = Log(terms=setting.terms, keep=Keep())
    load("protocols", "fedavg")().play(setting, recorder=Recorder(log), rng=Rng.root(seed))
    view = cut(log.transcript(), threat=Threat(), grants=Grants(), own={}, memory={})
    return view, means


def test_every_class_is_given_to_its_client():
    records, _ = federation()
    assert classes_of_clients(records.rounds[0], 4).tolist() == [0, 0, 1, 1]


def test_images_come_nearer_to_the_class_means_than_their_start():
    records, means = federation()
    short = create(ClassInversion, {"search": {"iterations": 1}})
    few = short.run(records, rng=Rng.root(0))[-1]
    settings = {"smoothness": 0.0, "search": {"learning_rate": 0.1, "patience": 150}}
    many = create(ClassInversion, settings).run(records, rng=Rng.root(0))
    assert [c.about.rounds for c in many] == [(0,), (0, 1)]

    def alike(images):
        a, b = (images - images.mean()).flatten(1), (means - means.mean()).flatten(1)
        return torch.cosine_similarity(a, b).mean()

    assert alike(many[-1].inputs) > alike(few.inputs) + 0.1


def test_without_named_private_classes_it_refuses():
    records, _ = federation(targets=0)
    with pytest.raises(Inapplicable, match="private classes"):
        ClassInversion().run(records, rng=Rng.root(0))


def test_that_no_class_is_named_is_foreseen():
    """So that nobody, and no automatic choice, runs it where it must refuse."""
    attacks = {"federation": {"protocol": "fedavg"}, "attacks": [{"name": "class_inversion"}]}
    domains = {"targets": 2, "shifts": [{"name": "box_blur"}]}
    named = {"source": "digits", "private_classes": [0, 1], "domains": domains}
    for data, refused in (({}, True), (named, False)):
        scenario = from_dict({"name": "classes", "data": data, **attacks})
        refusal = foresee_refusal(scenario, scenario.attacks[0])
        assert (refusal is not None and "names as private" in refusal.needs) == refused


def test_restarts_are_refused():
    with pytest.raises(BadValue, match=r"search\.restarts = 1"):
        create(ClassInversion, {"search": {"restarts": 2}})
