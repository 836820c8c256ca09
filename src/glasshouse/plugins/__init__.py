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
from glasshouse.attacks.inversion.linear_input import first_linear
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.local_steps import LINEAR
from glasshouse.attacks.parts.matching.exact import claim_images
from glasshouse.attacks.parts.readout.summed import sum_of_round
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.sequences import OccurredTokens, Sequences
from glasshouse.data.base import DataSource, assemble
from glasshouse.data.survey import Survey, counted_by
from glasshouse.errors import BadFile, BadValue, Inapplicable
from glasshouse.examples import Batch
from glasshouse.executors.base import Answer, Piece, Workers, run_piece
from glasshouse.federation.client import LocalTraining
from glasshouse.figures.base import CellEvidence, GroupEvidence
from glasshouse.limits import Share
from glasshouse.metrics.base import Metric, ScoreContext, Wording
from glasshouse.metrics.match import mse_table
from glasshouse.metrics.reconstruction import pair_images
from glasshouse.metrics.recovery import RateBlind
from glasshouse.modalities import guesses
from glasshouse.modalities.base import Display, Modality, Null, Wanted
from glasshouse.models.adapt import adapt
from glasshouse.models.base import Normalize, SplitModel, check_shape, check_width, flat_size
from glasshouse.process import worker_killed
from glasshouse.registry import Card, Offer
from glasshouse.results.exhibits import line, lines
from glasshouse.results.records import Exhibit
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Crafted, Mechanism, Update

__all__ = [
    "LINEAR",
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
    "RateBlind",
    "Reconstruction",
    "Rng",
    "ScoreContext",
    "Sequences",
    "Share",
    "SplitModel",
    "Survey",
    "Task",
    "Update",
    "View",
    "Wanted",
    "Wording",
    "Workers",
    "adapt",
    "assemble",
    "check_shape",
    "check_width",
    "claim_images",
    "counted_by",
    "first_linear",
    "flat_size",
    "guesses",
    "known_labels",
    "line",
    "lines",
    "mse_table",
    "pair_images",
    "replica",
    "run_piece",
    "sum_of_round",
    "worker_killed",
]
