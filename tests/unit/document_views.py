"""Federations of documents on rows of the made-up tables, their views, and claims held against the rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from glasshouse import registry
from glasshouse.attacks.base import Claim, tensors_of
from glasshouse.errors import NothingClaimed
from glasshouse.examples import Batch
from glasshouse.federation.setting import Setting
from glasshouse.interfaces import Defense
from glasshouse.metrics.base import ScoreContext
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.testing.toys import Recorder
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Terms

MODELS = {
    "statistics": "no_model",
    "survival": "no_model",
    "newton": "coefficients",
    "vertical": "no_model",
    "xgb_histogram": "boosted_trees",
    "xgb_bagging": "boosted_trees",
    "dp_bagging": "boosted_trees",
}


class Told(Recorder):
    """A recorder that keeps which rows stand behind every update."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.rows: dict[tuple[int, int], torch.Tensor] = {}

    def private(self, round: int, client: int, *, index: torch.Tensor, **_: object) -> None:
        self.rows[round, client] = index


class Played:
    """A federation that ran on ``batch``, shared out evenly among the clients."""

    def __init__(
        self, source: Any, batch: Batch, protocol: str, *, clients: int = 1, rounds: int = 1,
        options: Mapping[str, Any] | None = None, auxiliary: Batch | None = None,
        defenses: Sequence[Defense] = (),
    ) -> None:  # fmt: skip
        architecture = Architecture(
            name=MODELS[protocol], inputs=source.inputs, task=source.task, arguments={"capacity": 2**21}
        )
        size = len(batch) // clients
        self.terms = Terms(
            protocol=protocol, architecture=architecture, sends="document", clients=clients, cohort=clients,
            batch_size=size, options=options or {},
        )  # fmt: skip
        setting = Setting(
            terms=self.terms,
            rounds=rounds,
            private=batch,
            shards=tuple(torch.arange(size * clients).split(size)),
            start=state(build(architecture, rng=Rng.root(0))),
            build=build,
            defenses=tuple(defenses),
        )
        log = Log(terms=self.terms, keep=Keep())
        recorder = Told(log)
        self.final = registry.load("protocols", protocol)().play(setting, recorder=recorder, rng=Rng.root(0))
        self.batch, self.rows, self.transcript = batch, recorder.rows, log.transcript()
        self.grants = Grants(auxiliary=auxiliary)

    def view(self, *, rounds: Sequence[int] = (0,), client: int | None = 0) -> View:
        return cut(
            self.transcript, threat=Threat(), grants=self.grants, own={}, memory={}, rounds=tuple(rounds),
            client=client,
        )  # fmt: skip

    def behind(self, claim: Claim) -> Batch:
        """The rows that a claim is about."""
        (number,) = claim.about.rounds
        return self.batch.pick(self.rows[number, claim.about.client])

    def held(self, claims: Sequence[Claim]) -> tuple[int, int]:
        """Assertions that were proved, and those of them that are not true."""
        stated = wrong = 0
        context = ScoreContext(inputs=self.terms.architecture.inputs)
        for claim in claims:
            if not claim.proofs:
                continue
            metric = registry.load("metrics", claim.proofs)()
            own = self.behind(claim)
            truth = own.inputs
            if metric.against == "examples":
                truth = torch.cat([own.inputs.double(), own.labels.double()[:, None]], 1)
            try:
                scores = metric.score(tensors_of(claim)[metric.reads], truth, context=context)
            except NothingClaimed:
                continue
            stated, wrong = stated + len(scores), wrong + int((scores < 1).sum())
        return stated, wrong
