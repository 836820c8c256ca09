"""Joint training of SEER's model and secret decoder on auxiliary images.

Source: Garov et al. 2024, "Hiding in Plain Sight", ICLR, arXiv:2306.03013. The loss is the reconstruction
error of the chosen example plus the magnitude of the others in the projection. Where we differ: only the last
layer's gradient is projected. An example contributes the outer product of p - y (the error of the
probabilities) and its features, so that no second derivative is needed. The reader is linear and initialised
with principal components, where the authors train a network for days on a GPU. A term keeps logits near zero:
where the model is certain of a class, the example's gradient vanishes.

The projection M is linear and fixed: random orthonormal directions of the feature space. The model learns
features of ordinary examples that are zero along them. M maps the sum to a matrix of classes × code, nearly
of rank one: the chosen example's p - y times its code. The reader gets the code's direction.

Shape letters: N auxiliary images, B images of a step, E features, D entries of the code, K classes.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Annotated, final

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from glasshouse.attacks.linear.seer.chosen import Chosen, Property, choose, moved
from glasshouse.attacks.linear.seer.secret import SUBJECT, Secret, as_directions, floor_of, fresh
from glasshouse.attacks.parts.readout.linear_tail import latents
from glasshouse.cache import Checkpoint, load_or_make
from glasshouse.limits import Count, NotNegative, Positive, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import FUSED, take_prefix
from glasshouse.wire import Architecture

_VERSION = 1
_NATURAL = 4  # one in this many chosen images is natural, not adjusted
_RAMP = 0.3  # share of the steps after which the others have their full weight in a sum
_FAINT = 1e-6  # lower bound of denominators
_LONGEST = 1.0  # norm to which gradients are clipped
_SHOWN = 5  # adjusted images per entry of the code, for the principal components


@final
@dataclass(frozen=True, kw_only=True)
class SecretTraining:
    """Settings of the training of model and reader.

    Attributes:
        steps: optimizer steps.
        batch_size: chosen images per step, and as many others.
        learning_rate: peak of the one-cycle schedule.
        silence: weight of the others' magnitude in the projection, relative to the squared error of pixels.
        code: entries of the projection; at most half the number of the last layer's features.
    """

    steps: Count = 2_500
    batch_size: Annotated[int, Ge(2), Le(2**20)] = 32
    learning_rate: Positive = 1e-3
    silence: NotNegative = 0.02
    code: Count = 256

    def __post_init__(self) -> None:
        check_ranges(self, f"{SUBJECT}: training")


def train_secret(
    architecture: Architecture,
    images: Tensor,
    *,
    examples: int,
    looks_for: Property,
    recipe: SecretTraining,
) -> tuple[Secret, float]:
    """The model and its secret, and the agreement above which a read-out counts: cached, or trained now.

    Args:
        architecture: the agreed one.
        images: auxiliary, (N, C, H, W) in [0, 1].
        examples: in a round's sum.
        looks_for: the property.
        recipe: of the training.

    Raises:
        Inapplicable: the images are equally bright, or see :func:`last_layer`.
    """
    key = {
        "version": _VERSION,
        "architecture": [architecture.name, list(architecture.input_shape), dict(architecture.arguments)],
        "classes": architecture.classes,
        "images": images,
        "examples": examples,
        "looks_for": looks_for,
        "recipe": asdict(recipe),
    }
    rng = Rng.root(0).child("seer/training")

    def make(_: Checkpoint) -> dict[str, Tensor]:
        secret, generator = fresh(architecture, code=recipe.code), rng.torch()
        chosen = choose(images.cpu(), examples, looks_for=looks_for, generator=generator)
        first = torch.cat((chosen.natural, _draw(chosen.adjusted, _SHOWN * recipe.code, generator)))
        secret.reader.begin(first)
        secret = replace(secret, projection=secret.projection.to(images.device))
        both = nn.ModuleDict({"model": secret.model, "reader": secret.reader}).to(images.device).train()
        _train(secret, chosen, max(examples, 2) - 1, recipe=recipe, generator=generator)
        trained = both.eval().state_dict()
        return {**trained, "floor": torch.tensor(floor_of(secret, images, examples, looks_for))}

    tensors, secret = load_or_make("seer", key, make), fresh(architecture, code=recipe.code)
    for part, module in (("model", secret.model), ("reader", secret.reader)):
        module.load_state_dict(take_prefix(tensors, f"{part}."))
        module.to(images.device).eval()
    return replace(secret, projection=secret.projection.to(images.device)), float(tensors["floor"])


def _train(
    secret: Secret, chosen: Chosen, behind: int, *, recipe: SecretTraining, generator: torch.Generator
) -> None:
    """Train in place on a one-cycle schedule: chosen images, each in a sum with ``behind`` others.

    The last layer is not trained.
    """
    steps, rate = recipe.steps, recipe.learning_rate
    before = [p for n, p in secret.model.named_parameters() if not n.startswith(f"{secret.last}.")]
    weights = [*before, *secret.reader.parameters()]
    optimizer = torch.optim.Adam(weights, lr=rate, fused=secret.projection.device.type in FUSED)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=steps + 1, cycle_momentum=False
    )
    for step in track(range(steps), "training the model and its secret decoder", total=steps):
        weight = min(1.0, step / (_RAMP * steps))
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(secret, chosen, behind, weight=weight, recipe=recipe, generator=generator)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(weights, _LONGEST)
        optimizer.step()
        schedule.step()


def _loss(
    secret: Secret,
    chosen: Chosen,
    behind: int,
    *,
    weight: float,
    recipe: SecretTraining,
    generator: torch.Generator,
) -> Tensor:
    """The loss of one step; ``weight``: of the other examples in the sum, from 0 to 1."""
    size, natural = recipe.batch_size, -(-recipe.batch_size // _NATURAL)
    parts = (_draw(chosen.natural, natural, generator), _draw(chosen.adjusted, size - natural, generator))
    singled = moved(torch.cat(parts), generator)
    images = torch.cat((singled, _draw(chosen.others, size, generator))).to(secret.projection.device)
    features = latents(secret.model, secret.last)(images)
    logits: Tensor = secret.model.get_submodule(secret.last)(features)
    labels = torch.randint(logits.shape[1], (len(images),), generator=generator)
    wrong = logits.softmax(1) - nn.functional.one_hot(labels, logits.shape[1]).to(logits)
    codes = features @ secret.projection.T
    own, others = codes[:size], codes[size:]
    shares = wrong[:size] @ wrong[size:].T / wrong[:size].square().sum(1, keepdim=True).clamp_min(_FAINT)
    rest = math.sqrt(behind / size) * shares @ others
    again = secret.reader(as_directions(own + weight * rest))
    residual = behind * others.square().sum(1).mean() / own.square().sum(1).mean().clamp_min(_FAINT**2)
    error = nn.functional.mse_loss(again, images[:size])
    return error + recipe.silence * (residual.log1p() + logits.square().mean())


def _draw(images: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Draw ``number`` images with replacement."""
    return images[torch.randint(len(images), (number,), generator=generator)]
