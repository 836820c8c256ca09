"""Are the declared terms the real ones? Training that is done again on recorded batches says so.

Attacks that simulate a client's training assume the terms. Of a real federation these are declared by who runs
it, so they may be wrong. A test client recorded its batches and what came of them; the same batches, trained on
under the declared terms, must give the same. Where they do not, the terms are varied one by one to say
which of them is likely wrong.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.audit.captured.collect import sent_file
from glasshouse.audit.simulation.record import TermsCheck
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.setting import Setting
from glasshouse.models.build import build, load
from glasshouse.rng import Rng
from glasshouse.store import read_tensors
from glasshouse.tensors import difference, norm
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Used
from glasshouse.wire import Batch, Broadcast, Terms

TOLERANCE: Final = 1e-3
"""Largest error that is rounding: L2 norm of what is off, as a share of the change that training made."""
UPDATES: Final = 8
"""Updates that are trained again, at most."""
