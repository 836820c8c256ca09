"""Boosted trees in a federation, as the apps of Flower and NVIDIA FLARE train them with XGBoost.

Source: Flower, examples/xgboost-quickstart and xgboost-comprehensive (bagging and cyclic), read at March
2026; NVIDIA FLARE's tree-based XGBoost sends the same bytes. In bagging each client boosts the common model
by its own trees and sends only these; the server appends all trees as they come in (here in a random order).
In cyclic training the whole model goes round.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from glasshouse.errors import BadValue, not_installed
from glasshouse.federation.protocols.documents.base import TRAITS, as_agreed, broadcast, check, send
from glasshouse.federation.setting import Setting
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.xgboost import append_trees
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.limits import Count, Fix, Fraction, NotNegative, Share
from glasshouse.progress import track
from glasshouse.registry import Card
from glasshouse.rng import Rng

try:
    import xgboost
except ImportError as error:
    raise not_installed("protocols xgb_bagging and xgb_cyclic", "xgboost", error, extra="trees") from error


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """Base class of these protocols. Its fields are public settings, which are read from ``Terms.options``.

    Args:
        trees: boosted by a client per round.
        max_depth: of a tree.
        eta: learning rate.
        reg_lambda: of the L2 penalty.
        min_child_weight: smallest sum of second derivatives in a leaf.
        subsample: share of the rows that a tree sees.
        base_score: the probability before the first tree; 0: each client's own share of positives, as XGBoost
            chooses it where nothing is set.
        max_bin: candidates for a cut, per column.
        reg_alpha: of the L1 penalty.
        units: of the rows that trees see: ``encoded``, as networks see them; ``raw``, the table's numbers as
            they are, in captures of apps that encode nothing.
        rows: what no file of trees shows of them: ``plain``, each counts once and none has a value that is
            taken for a missing one, as in simulations; ``unknown``, then nothing is proved.
    """

    trees: Count = 1
    max_depth: Annotated[int, Ge(1), Le(32), Fix("XGBoost's own default is 6")] = 6
    eta: Annotated[Fraction, Fix("XGBoost's own default is 0.3")] = 0.3
    reg_lambda: NotNegative = 1.0
    min_child_weight: NotNegative = 1.0
    subsample: Annotated[Fraction, Fix("1 for all rows")] = 1.0
    base_score: Annotated[Share, Fix("0 for each client's own share")] = 0.0
    max_bin: Annotated[int, Ge(2), Le(2**16), Fix("XGBoost's own default is 256")] = 256
    reg_alpha: NotNegative = 0.0
    units: Literal["encoded", "raw"] = "encoded"
    rows: Literal["plain", "unknown"] = "plain"

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run: one per tree."""
        return rounds * self.trees

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds. See ``FederationProtocol.play``.

        Raises:
            BadValue: another model than boosted trees, or settings that these protocols do not have.
        """
        check(setting, tamper, model="boosted_trees", defended=True)
        how = as_agreed(self, setting.terms.options)
        if (how.units, how.rows) != ("encoded", "plain"):
            raise BadValue(
                f"protocol '{setting.terms.protocol}'",
                needs='units = "encoded" and rows = "plain" in a simulation',
                got=f"units = {how.units}, rows = {how.rows}",
                fix="leave it out; a capture states it",
            )
        common = b""
        capacity = setting.start[NAME].numel()
        for number in track(range(setting.rounds), "federation", total=setting.rounds):
            common = how.one_round(
                setting, number, common, recorder=recorder, rng=rng.child(f"round/{number}")
            )
        return {**setting.start, NAME: tensor_of(common, capacity)}

    def one_round(
        self, setting: Setting, number: int, common: bytes, *, recorder: Recorder, rng: Rng
    ) -> bytes:
        """The common model after a round that starts from ``common``."""
        raise NotImplementedError

    def boost(self, setting: Setting, client: int, common: bytes, *, rng: Rng) -> "xgboost.Booster":
        """The model after a client added its trees to ``common``."""
        data = setting.shard(client)
        rows = xgboost.DMatrix(data.inputs.numpy(), data.labels.numpy(), nthread=1)
        parameters: dict[str, Any] = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "nthread": 1,
            "seed": int(torch.randint(2**31 - 1, (1,), generator=rng.torch())),
            "max_depth": self.max_depth,
            "eta": self.eta,
            "reg_lambda": self.reg_lambda,
            "reg_alpha": self.reg_alpha,
            "min_child_weight": self.min_child_weight,
            "subsample": self.subsample,
            "max_bin": self.max_bin,
        }
        parameters |= {"base_score": self.base_score} if self.base_score else {}
        before = None
        if common:
            before = xgboost.Booster(parameters)
            before.load_model(bytearray(common))
        return xgboost.train(parameters, rows, self.trees, xgb_model=before)


@final
@dataclass(frozen=True, kw_only=True)
class XgbBagging(Boosting):
    """Every client boosts the common model; the server appends the trees of all of them."""

    card: ClassVar[Card] = Card(
        summary="each client sends its new boosted trees; the server appends them",
        source="Flower, examples/xgboost-comprehensive, bagging",
        extra="trees",
    )
    traits: ClassVar[Traits] = TRAITS

    def one_round(
        self, setting: Setting, number: int, common: bytes, *, recorder: Recorder, rng: Rng
    ) -> bytes:
        """One round: all clients boost the same model; who is done first is a matter of chance."""
        broadcast(setting, number, common, recorder)
        added: list[bytes] = []
        order = torch.randperm(setting.terms.clients, generator=rng.child("arrival").torch())
        for client in order.tolist():
            stream = rng.child(f"client/{client}")
            grown = self.boost(setting, client, common, rng=stream)
            new = bytes(grown[grown.num_boosted_rounds() - self.trees :].save_raw("json"))
            added.append(send(setting, number, client, new, recorder, rng=stream))
        for document in added:
            common = append_trees(common, document)
        return common


@final
@dataclass(frozen=True, kw_only=True)
class XgbCyclic(Boosting):
    """The model goes from client to client; each boosts it and sends the whole."""

    card: ClassVar[Card] = Card(
        summary="the boosted model goes from client to client, one per round",
        source="Flower, examples/xgboost-comprehensive, cyclic",
        extra="trees",
    )
    traits: ClassVar[Traits] = TRAITS

    def one_round(
        self, setting: Setting, number: int, common: bytes, *, recorder: Recorder, rng: Rng
    ) -> bytes:
        """One round: the next client's turn."""
        broadcast(setting, number, common, recorder)
        client = number % setting.terms.clients
        stream = rng.child(f"client/{client}")
        grown = self.boost(setting, client, common, rng=stream)
        return send(setting, number, client, bytes(grown.save_raw("json")), recorder, rng=stream)
