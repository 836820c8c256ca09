"""What the author of a plug-in imports: contracts, the data they meet, and errors.

These names stay as they are within a major version (docs/compatibility.md); everything else may move. The
contracts' tests stand in :mod:`glasshouse.testing`.
"""

from glasshouse.attacks.base import (
    About,
    ActiveAttack,
    Attack,
    Claim,
    ClassRepresentatives,
    ClientScores,
    Labels,
    Needs,
    Reconstruction,
)
from glasshouse.attacks.sequences import OccurredTokens, Sequences
from glasshouse.data.base import DataSource, assemble
from glasshouse.errors import BadFile, BadValue, Inapplicable
from glasshouse.examples import Batch
from glasshouse.executors.base import Answer, Piece, Workers, run_piece
from glasshouse.federation.client import LocalTraining
from glasshouse.figures.base import CellEvidence, GroupEvidence
from glasshouse.limits import Share
from glasshouse.metrics.base import Metric, ScoreContext, Wording
from glasshouse.modalities.base import Display, Modality, Null, Wanted
from glasshouse.models.base import Normalize, SplitModel
from glasshouse.registry import Card, Offer
from glasshouse.results.records import Exhibit
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Crafted, Mechanism, Update

__all__ = [
    "About",
    "ActiveAttack",
    "Answer",
    "Architecture",
    "Attack",
    "BadFile",
    "BadValue",
    "Batch",
    "Card",
    "CellEvidence",
    "Claim",
    "ClassRepresentatives",
    "ClientScores",
    "Crafted",
    "DataSource",
    "Display",
    "Exhibit",
    "GroupEvidence",
    "Inapplicable",
    "Labels",
    "LocalTraining",
    "Mechanism",
    "Metric",
    "Modality",
    "Needs",
    "Normalize",
    "Null",
    "OccurredTokens",
    "Offer",
    "Piece",
    "Reconstruction",
    "Rng",
    "ScoreContext",
    "Sequences",
    "Share",
    "SplitModel",
    "Task",
    "Update",
    "View",
    "Wanted",
    "Wording",
    "Workers",
    "assemble",
    "run_piece",
]
