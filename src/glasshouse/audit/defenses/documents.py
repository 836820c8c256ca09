"""Masks in documents: whether sums that a client hid still follow from what it left in the file."""

import math
from collections.abc import Iterator

from glasshouse.audit.defenses.declared import Judged
from glasshouse.audit.defenses.observe import Observation, State
from glasshouse.errors import BadFile
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import bytes_of
from glasshouse.formats.records import TreeEnsemble
from glasshouse.guard.rules.documents import determined
from glasshouse.transcript.record import Transcript

MASK = "masked_sums"
"""Second derivatives replaced by ones, as NVIDIA FLARE's ``mask_sum_hessian`` does."""


def observe_masks(transcript: Transcript) -> tuple[Judged, ...]:
    """One row per client whose documents hide sums: in how many splits they still follow from the rest.

    A document that cannot be read shows nothing.
    """
    return tuple(_rows(transcript))


def _rows(transcript: Transcript) -> Iterator[Judged]:
    # A client masks all of its documents or none: the worst of them says what its mask is worth.
    shares: dict[int, list[float]] = {}
    for record in transcript.rounds:
        for update in record.updates:
            for tensor in update.tensors.values():
                try:
                    _, document = read_document(bytes_of(tensor))
                except BadFile:
                    continue
                if isinstance(document, TreeEnsemble) and not math.isnan(share := determined(document)):
                    shares.setdefault(update.client, []).append(share)
    for client, seen in sorted(shares.items()):
        undone = max(seen)
        state: State = "off" if undone else "on"
        observation = Observation(kind="mask", state=state, value=undone, shows=len(seen), updates=len(seen))
        reason = (
            f"sum_hessian is masked, but base_weights and loss_changes determine it in {undone:.0%} of the "
            "splits: drop both as well"
            if undone
            else "sum_hessian is masked, and neither weights nor gains of splits are left to undo it"
        )
        yield Judged(
            defense=MASK,
            setting="",
            declared=math.nan,
            client=client,
            observation=observation,
            ruling="off" if undone else "not declared",
            reason=reason,
        )
