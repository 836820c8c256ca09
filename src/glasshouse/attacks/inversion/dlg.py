"""DLG: optimise images and soft labels jointly until their gradient matches the received one.

Source: Zhu, Liu & Han 2019, "Deep Leakage from Gradients", arXiv:1906.08935, Algorithm 1 and section 4.

Minimises the squared L2 distance of gradients, summed over all entries, by L-BFGS with unit steps.
Candidates start from N(0, 1) in pixel units normalised for the model, are unconstrained during the search,
and are clipped to the declared image range at the end. The restarts run in one batch; the one with the
smallest distance is claimed.

Where we differ: several restarts (the paper shows one), and early stopping when one has matched the gradient
or none improves. An update after several local steps is read as one step.

Breaks when: the activations are not smooth (with ReLU the distance is discontinuous), the weights are small
(PyTorch's default initialisation), the batch is large, or the update is noisy.
"""

from dataclasses import dataclass, field
from typing import ClassVar, final

from glasshouse.attacks.base import Needs
from glasshouse.attacks.parts.local_steps import LINEAR, ON_LENET, update_needs
from glasshouse.attacks.parts.matching.exact import ExactAttack, QuasiNewton
from glasshouse.registry import Card, Offer


@final
@dataclass(frozen=True, kw_only=True)
class DLG(ExactAttack):
    """Images and soft labels by L-BFGS on the squared distance of gradients.

    Args:
        search: by L-BFGS; the paper uses 300 iterations.
        adaptive: apply the transformation estimated from the update (clip, prune, Soteria) to candidates.
    """

    name: ClassVar[str] = "dlg"
    card: ClassVar[Card] = Card(
        title="DLG",
        summary="gradient matching by L-BFGS, labels searched too",
        source="Zhu et al. 2019, arXiv:1906.08935",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control=ON_LENET,
        offers=(
            Offer(strength=0.2, settings={"search": {"iterations": 40, "restarts": 1}}),
            Offer(strength=0.3),
        ),
    )
    needs: ClassVar[Needs] = update_needs(LINEAR, one_label=True, twice=True)

    search: QuasiNewton = field(default_factory=QuasiNewton)
    adaptive: bool = False
