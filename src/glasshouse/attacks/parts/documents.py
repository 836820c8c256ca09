"""The document in a view of one update, read."""

from dataclasses import dataclass
from typing import Final, final

import torch

from glasshouse.attacks.base import About, Needs
from glasshouse.errors import Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import bytes_of
from glasshouse.formats.records import Document, TreeEnsemble
from glasshouse.transcript.view import View
from glasshouse.wire import Update

ON_CLINIC: Final = {
    "setting": "two trees of depth 4 on 60 rows of a made-up clinic, no defence",
    "scenario": {
        "data": {"source": "clinic", "examples": 60, "auxiliary": 600},
        "model": {"name": "boosted_trees"},
        "federation": {
            "protocol": "xgb_bagging",
            "batch_size": 60,
            "options": {"trees": 2, "max_depth": 4, "min_child_weight": 0.5},
        },
    },
}
"""Control of attacks on trees."""
BOOSTED: Final = frozenset({"xgb_bagging", "xgb_cyclic"})


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """One client's document.

    Attributes:
        update: the message.
        media: name of its format.
        document: what it says.
        first: the client had received no model: its trees are the first ones.
    """

    update: Update
    media: str
    document: Document
    first: bool

    @property
    def about(self) -> About:
        """The round and the client."""
        return About(rounds=(self.update.round,), client=self.update.client)


def received(view: View, *, subject: str) -> Received:
    """The document of the one update in a view.

    Raises:
        Inapplicable: the update is no document.
        BadFile: the document is damaged or of no known format.
    """
    broadcast, update = view.single(subject=subject)
    documents = [t for t in update.tensors.values() if t.dtype == torch.uint8]
    if len(documents) != 1:
        raise Inapplicable(
            subject,
            needs="an update that is one document of bytes",
            got=f"kind '{update.kind}', {len(documents)} tensors of bytes",
            fix="audit a protocol that sends documents: xgb_bagging, xgb_cyclic",
        )
    media, document = read_document(bytes_of(documents[0]))
    before = any(t.dtype == torch.uint8 and bool(t.any()) for t in broadcast.tensors.values())
    return Received(update=update, media=media, document=document, first=not before)


def first_trees(view: View, *, subject: str) -> tuple[Received, TreeEnsemble]:
    """The document, which must be trees that a client boosted from nothing.

    Raises:
        Inapplicable: no trees, or trees on top of others' trees.
        BadFile: as :func:`received`.
    """
    got = received(view, subject=subject)
    if not isinstance(got.document, TreeEnsemble) or not got.first:
        raise Inapplicable(
            subject,
            needs="trees that a client boosted before it received others'",
            got="trees on top of a common model" if not got.first else f"a document {got.media}",
            fix="set audit.rounds = [0]",
        )
    return got, got.document


def needs(*uses: str) -> Needs:
    """Needs of an attack on documents of trees; ``uses``: grants used where given."""
    return Needs(
        sees=frozenset({"broadcast", "update"}),
        scope="update",
        uses=frozenset(uses),
        protocols=BOOSTED,
        modalities=frozenset({"row"}),
    )
