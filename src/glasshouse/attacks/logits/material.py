"""The data of a server that receives only logits: public images, uploads, and its own logits.

Shape letters: P public images, n of them of the private domain (D_0), J classes, L targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.errors import Inapplicable
from glasshouse.transcript.view import View
from glasshouse.wire import Batch


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """The data of one run that attacks on logits use.

    Attributes:
        public: all public images; the first ``sensitive`` are of the private domain.
        targets: L.
        rounds: those in which there are both uploads and logits of the server's own.
        server: its logits, one (P, J) per round.
        clients: uploads (P, J) by client, one table per round.
        image_range: smallest and largest pixel.
    """

    public: Batch
    sensitive: int
    targets: int
    rounds: tuple[int, ...]
    server: tuple[Tensor, ...]
    clients: tuple[Mapping[int, Tensor], ...]
    image_range: tuple[float, float]

    @property
    def known(self) -> Batch:
        """D_0."""
        return self.public.pick(torch.arange(self.sensitive))

    @property
    def labelled(self) -> bool:
        """Whether the public images have labels."""
        return bool((self.public.labels >= 0).all())

    def scaled(self, pixels: Tensor) -> Tensor:
        """Pixels to [-1, 1]."""
        low, high = self.image_range
        return (pixels - low) / (high - low) * 2 - 1

    def pixels(self, scaled: Tensor) -> Tensor:
        """Pixels from [-1, 1], clipped to the image range."""
        low, high = self.image_range
        return ((scaled + 1) / 2 * (high - low) + low).clamp(low, high)


def material(view: View, *, subject: str) -> Material:
    """Read a view of a whole run.

    Raises:
        Inapplicable: no public data, none of it of the private domain, the private classes are unknown, or no
            kept round has both uploads and the server's own logits.
    """
    terms = view.terms
    if terms.public is None or not terms.sensitive or not terms.targets:
        raise Inapplicable(
            subject,
            needs="public images of the private domain, and private classes that the protocol names",
            got="none" if terms.public is None else f"{terms.sensitive} images, {terms.targets} classes",
            fix="set data.domains",
        )
    both = [r for r in view.rounds if r.updates and "logits" in view.own.get(r.round, {})]
    if not both:
        raise Inapplicable(
            subject,
            needs="a kept round with uploads and the server's own logits",
            got=f"rounds {[r.round for r in view.rounds]}, own logits in {sorted(view.own)}",
            fix='set federation.keep.rounds = "all"; the server must see update and own',
        )
    return Material(
        public=terms.public,
        sensitive=terms.sensitive,
        targets=terms.targets,
        rounds=tuple(r.round for r in both),
        server=tuple(view.own[r.round]["logits"] for r in both),
        clients=tuple({c: u.tensors["logits"] for c, u in sorted(r.updates.items())} for r in both),
        image_range=terms.architecture.inputs.range,
    )
