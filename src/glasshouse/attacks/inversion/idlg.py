"""iDLG: infer the label from the gradient first, then optimise the images alone.

Source: Zhao, Mopuri & Bilen 2020, "iDLG: Improved Deep Leakage from Gradients", arXiv:2001.02610.

As ``dlg``, with labels from the last layer's gradient (the sign rule for one image, counts for a batch;
the paper covers one image). Granted labels are used instead, if any.
"""

from dataclasses import dataclass, field
from typing import ClassVar, final

from glasshouse.attacks.base import Needs
from glasshouse.attacks.parts.local_steps import LINEAR, ON_LENET, update_needs
from glasshouse.attacks.parts.matching.exact import ExactAttack, QuasiNewton
from glasshouse.registry import Card, Offer


@final
@dataclass(frozen=True, kw_only=True)
class IDLG(ExactAttack):
    """Images by L-BFGS on the squared distance of gradients; labels inferred.

    Args:
        search: as in ``DLG``.
        adaptive: as in ``DLG``.
    """

    name: ClassVar[str] = "idlg"
    card: ClassVar[Card] = Card(
        title="iDLG",
        summary="gradient matching by L-BFGS, labels inferred first",
        source="Zhao et al. 2020, arXiv:2001.02610",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control=ON_LENET,
        offers=(
            Offer(strength=0.3, settings={"search": {"iterations": 40, "restarts": 1}}),
            Offer(strength=0.4),
        ),
    )
    needs: ClassVar[Needs] = update_needs(LINEAR, "labels", one_label=True, twice=True)

    search: QuasiNewton = field(default_factory=QuasiNewton)
    adaptive: bool = False
