"""DLG and iDLG show CIFAR images recovered to the pixel from a LeNet with sigmoids; so must ours.

Source: Zhu et al. 2019, arXiv:1906.08935; Zhao et al. 2020, arXiv:2001.02610, which counts a mean squared
error below 1e-3 (30 dB) as good. Every restart need not converge.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.attacks.inversion.idlg import IDLG
from glasshouse.attacks.parts.matching.exact import QuasiNewton
from glasshouse.images import psnr
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Terms, Update

CIFAR = Path(__file__).parents[2].parent / "shared/data/cifar10_12k.npz"
ARCHITECTURE = Architecture.of("lenet_sigmoid", (3, 32, 32), 10)


def seen(image: Tensor, label: Tensor, seed: int) -> View:
    model = models.build(ARCHITECTURE, rng=Rng.root(seed)).eval()
    result = torch.autograd.grad(F.cross_entropy(model(image), label), list(model.parameters()))
    tensors = dict(zip(dict(model.named_parameters()), result, strict=True))
    update = Update(round=0, client=0, kind="gradient", tensors=tensors, examples=1)
    broadcast = Broadcast(round=0, architecture=ARCHITECTURE, tensors=models.state(model))
    terms = Terms(
        protocol="fedsgd", architecture=ARCHITECTURE, sends="gradient", clients=1, cohort=1, batch_size=1
    )
    return View(
        terms=terms, threat=Threat(), rounds=(RoundView(round=0, broadcast=broadcast, updates={0: update}),)
    )


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR.exists(), reason="needs ../shared/data/cifar10_12k.npz")
def test_idlg_recovers_photographs():
    """Three test photographs, 4 restarts, 300 steps: the median above 30 dB, every label right."""
    data = np.load(CIFAR)
    values = []
    for i in (0, 700, 1400):
        image = torch.tensor(data["test_images"][i]).permute(2, 0, 1)[None].float() / 255
        label = torch.tensor(data["test_labels"][i].astype("int64")).reshape(1)
        (claim,) = IDLG(search=QuasiNewton(restarts=4, iterations=300)).run(
            seen(image, label, i), rng=Rng.root(i)
        )
        assert claim.labels.tolist() == label.tolist()
        values.append(float(psnr(claim.inputs, image)))
    assert sorted(values)[1] > 30
