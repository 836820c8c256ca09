"""Private examples that the adversary has anyway, of data in which equal examples are several people.

No role is dealt a copy of another's example. Rows of a table may be alike within the tolerances of its schema
without being copies, and the clients of a capture may have copies of anything: whoever is alike to a public
row is known without any update. A sentence says how many are, and no rate counts those whose like is in the
auxiliary data (decision 0356).
"""

from typing import Final

import torch
from torch import Tensor

from glasshouse.data.splits import Roles
from glasshouse.examples import Batch
from glasshouse.modalities.base import Modality

PAIRS: Final = 2**24
"""Pairs that are compared; beyond, only copies are counted."""
AT_ONCE: Final = 2**20
"""Of these, in one operation."""
HELD: Final = ("auxiliary", "public")
"""Roles whose examples an adversary may have."""


def known_words(private: Batch, roles: Roles, inputs: Modality) -> tuple[str, ...]:
    """How many private examples also occur among those of each other role, a sentence for each.

    Empty for examples that do not recur.
    """
    if not inputs.recurs or not len(private):
        return ()
    told = []
    for role, batch in roles.parts().items():
        if role == "private":
            continue
        known = int(which_known(private.inputs, batch.inputs, inputs).sum())
        how = "within the tolerances of the schema" if _is_near(private, batch) else "exactly"
        so = _SO if known and role in HELD else ""
        so += _OUT if known and role == "auxiliary" else ""
        told.append(
            f"{known:,} of {len(private):,} private {inputs.nouns} also occur among the {len(batch):,} of "
            f"the {role} data, {how}{so}."
        )
    return tuple(told)


_SO: Final = ": whoever has these knows them without any update"
_OUT: Final = ", and no rate counts them"


def which_known(private: Tensor, others: Tensor, inputs: Modality) -> Tensor:
    """Which private examples are among others, (N,): within the tolerances, exactly where there are many."""
    return (_alike if _is_near(private, others) else _copied)(private, others, inputs)


def _is_near(private: Batch | Tensor, others: Batch | Tensor) -> bool:
    return len(private) * len(others) <= PAIRS


def _alike(private: Tensor, others: Tensor, inputs: Modality) -> Tensor:
    """Which private examples are at distance 0 from one of the others, (N,)."""
    size = max(1, AT_ONCE // max(1, len(others)))
    near = [(inputs.distance(part, others) == 0).any(1) for part in torch.split(private, size)]
    return torch.cat(near)


def _copied(private: Tensor, others: Tensor, inputs: Modality) -> Tensor:
    """Which private examples are among the others, byte by byte, (N,)."""
    del inputs
    theirs = {example.tobytes() for example in others.numpy()}
    return torch.tensor([example.tobytes() in theirs for example in private.numpy()])
