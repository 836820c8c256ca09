"""FLARE's filters as declarations, and what can be said of them before any update is seen."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

import torch

from glasshouse.audit.defenses.declared import Judged, Ruling
from glasshouse.audit.defenses.observe import Observation, unclear
from glasshouse.errors import GlasshouseError
from glasshouse.federation.defenses.marks import LAPLACE
from glasshouse.integrations.nvflare_filters.budget import SparseVectorBudget, sparse_vector_budget
from glasshouse.integrations.nvflare_filters.files import Filter, read_filters
from glasshouse.registry import Card, create, load
from glasshouse.transcript.record import Transcript
from glasshouse.wire import Kind, Mechanism, Update

KINDS: Final[Mapping[str, Kind]] = {"WEIGHTS": "parameters", "WEIGHT_DIFF": "delta"}
MOST_EPSILON: Final = 10.0
"""ε of one round above which noise is called mis-set: it allows odds to change by a factor of 22,000."""
WIDE: Final = 4.0
"""Standard errors of a mean magnitude that are no fault: one false alarm in some 16,000 clients."""
_STATISTICS: Final = ("StatisticsPrivacyFilter",)

Read = tuple[list[Mechanism], list[Judged]]


@final
@dataclass(frozen=True, kw_only=True)
class NvflareFilters:
    """Reads the filters of NVIDIA FLARE."""

    card: ClassVar[Card] = Card(
        summary="NVIDIA FLARE's filters on results, of config_fed_client.json or a site's privacy.json",
    )

    def read(self, paths: Sequence[Path], transcript: Transcript) -> Read:
        """Mechanisms to look for in the updates, and rulings that the files alone decide.

        Args:
            paths: files of one site and one job; the site's filters act first.
            transcript: what was sent.

        Raises:
            BadFile: a file is neither of the two.
        """
        filters = [one for path in paths for one in read_filters(path)]
        filters.sort(key=lambda one: one.owner == "job")
        mechanisms: list[Mechanism] = []
        rows: list[Judged] = []
        updates = [update for record in transcript.rounds for update in record.updates]
        for one in filters:
            found = _declared(one, updates)
            mechanisms += found[0]
            rows += [*found[1], *_placed(one)]
        return mechanisms, rows


def _declared(one: Filter, updates: Sequence[Update]) -> Read:
    """The mechanism of one filter that acts on these updates, with what can be said of its settings."""
    reader = _READERS.get(one.name)
    if one.name in _STATISTICS:
        return [], _statistics(one)
    if reader is None:
        return [], [_row(one, "", math.nan, "cannot be told", "no filter of FLARE that this check knows")]
    kinds = {str(kind) for kind in one.arguments.get("data_kinds") or KINDS}
    sent = {update.kind for update in updates}
    if sent and not sent & {KINDS[kind] for kind in kinds if kind in KINDS}:
        words = ", ".join(sorted(kinds))
        reason = f"it acts on {words}, but clients send {', '.join(sorted(sent))}"
        return [], [_row(one, "data_kinds", math.nan, "off", reason)]
    try:
        mechanisms, rows = reader(one, updates)
    except (GlasshouseError, TypeError, ValueError) as error:
        # FLARE passes everything on where a percentile, gamma or name is out of range or of another type.
        return [], [_row(one, "", math.nan, "off", f"its settings are none that it acts on: {error}")]
    if "parameters" in sent and "WEIGHTS" in kinds and one.name != "ExcludeVars":
        # What is clipped is then each weight, not its change; its marks are not those of a change either.
        reason = (
            "clients send whole models: it cuts the weights themselves, not what training changed in them"
        )
        return [], [*rows, _row(one, "data_kinds", math.nan, "mis-set", reason)]
    return mechanisms, rows


def _percentile(one: Filter, updates: Sequence[Update]) -> Read:
    del updates  # nothing in its settings depends on the model
    percentile = float(one.arguments.get("percentile", 10))
    mechanism = _mechanism("percentile", percentile=percentile, bound=float(one.arguments.get("gamma", 0.01)))
    reason = f"it adds no noise: {100 - percentile:g} % of the numbers leave as they are, up to the bound"
    return [mechanism], [_row(one, "epsilon per round", math.inf, "cannot be told", reason)]


def _sparse_vector(one: Filter, updates: Sequence[Update]) -> Read:
    """FLARE's rule since 2.9: values are clipped before the noise, so that their noise shows in full.

    Our defence ``sparse_vector`` clamps after it, as earlier versions did, and is no declaration of this one.
    """
    stock = {"fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "gamma": 1e-5}
    settings = {name: float(one.arguments.get(name, default)) for name, default in stock.items()}
    release = one.arguments.get("epsilon_release")
    if not updates:
        return [], []
    numbers = sum(t.numel() for t in updates[0].tensors.values())
    budget = sparse_vector_budget(numbers, **settings, epsilon_release=release)
    ruling: Ruling = "mis-set" if budget.total > MOST_EPSILON else "cannot be told"
    reason = (
        f"one round of {numbers:,} numbers spends {budget.total:,.6g}: {budget.query:.4g} on comparisons, "
        f"{budget.threshold:.2g} on the threshold, {budget.release:,.6g} on {budget.uploads:,} values "
        f"({budget.per_value:.3g} each); epsilon = {settings['epsilon']:g} covers the first two"
    )
    rows = [_row(one, "epsilon per round", budget.total, ruling, reason)]
    for client in sorted({update.client for update in updates}):
        sent = [update for update in updates if update.client == client]
        rows.append(_released(one, budget, settings["gamma"], sent))
    return [], rows


def _released(one: Filter, budget: SparseVectorBudget, gamma: float, sent: Sequence[Update]) -> Judged:
    """Whether one client's updates have as few values, as noisy, as the filter leaves.

    For a value clipped to ``gamma`` plus Laplace noise of scale b, the mean magnitude lies in [b, b + gamma].
    """
    flat = [torch.cat([t.flatten().double() for t in u.tensors.values()]) / u.steps for u in sent]
    kept = [values[values != 0] for values in flat]
    most, pooled = max(map(len, kept)), torch.cat(kept).abs()
    mean = float(pooled.mean()) if len(pooled) else 0.0
    margin = WIDE * budget.scale / math.sqrt(max(len(pooled), 1))
    low, high = budget.scale - margin, budget.scale + gamma + margin
    ruling: Ruling = "as declared"
    reason = f"at most {most:,} values of an update are sent, of mean magnitude {mean:.3g} per step"
    if most > budget.uploads:
        ruling, reason = "off", f"{most:,} values of an update are sent, not at most {budget.uploads:,}"
    elif not low <= mean <= high:
        ruling = "mis-set"
        reason = f"sent values have a mean magnitude of {mean:.3g} per step, not {low:.3g} to {high:.3g}"
    seen = Observation(
        kind="noise", state="off" if ruling == "off" else "on", value=mean, low=mean - margin,
        high=mean + margin, shows=len(sent), updates=len(sent), family=LAPLACE,
    )  # fmt: skip
    return Judged(
        defense=one.name, setting="noise per step", declared=budget.scale, client=sent[0].client,
        observation=seen, ruling=ruling, reason=reason,
    )  # fmt: skip


def _exclude(one: Filter, updates: Sequence[Update]) -> Read:
    stated = one.arguments.get("exclude_vars")
    if not stated:
        return [], [_row(one, "exclude_vars", math.nan, "off", "it names nothing, and so excludes nothing")]
    if not updates:
        return [], []
    pattern = re.compile(stated) if isinstance(stated, str) else None
    # FLARE removes a tensor; the server then receives a message without it, or with its last value.
    sent = {name for update in updates for name in update.tensors}
    hit = {name for name in sent if (pattern.search(name) if pattern else name in stated)}
    if hit:
        reason = f"{', '.join(sorted(hit)[:3])} were sent all the same"
        return [], [_row(one, "exclude_vars", math.nan, "off", reason)]
    return [], [
        _row(one, "exclude_vars", math.nan, "cannot be told", "no tensor of a name that it excludes was sent")
    ]


def _statistics(one: Filter) -> list[Judged]:
    """What the cleansers of a statistics filter leave; updates show nothing of them."""
    rows = []
    named = [str(name) for name in one.arguments.get("result_cleanser_ids") or ()]
    for name in named:
        cleanser = one.components.get(name)
        if cleanser is None:
            reason = f"there is no component '{name}': FLARE leaves it out without a word"
            rows.append(_row(one, name, math.nan, "off", reason))
        else:
            rows += _cleanser(one, name, cleanser)
    if not named:
        rows.append(_row(one, "result_cleanser_ids", math.nan, "off", "it names no cleanser"))
    return rows


def _cleanser(one: Filter, name: str, cleanser: Mapping[str, Any]) -> list[Judged]:
    kind = str(cleanser["path"]).rpartition(".")[2]
    # A bound that rules nothing out is off. What others protect depends on the site's rows, which no
    # declaration shows.
    if kind == "MinCountCleanser":
        least = float(cleanser.get("min_count", math.nan))
        ruling: Ruling = "off" if not least > 1 else "cannot be told"
        reason = "one record is enough" if ruling == "off" else f"fewer than {least:g} records are left out"
        return [_row(one, f"{name}.min_count", least, ruling, reason)]
    if kind == "HistogramBinsCleanser":
        share = float(cleanser.get("max_bins_percent", math.nan))
        ruling = "off" if not share < 100 else "cannot be told"
        reason = (
            "a bin for each record is allowed"
            if ruling == "off"
            else f"at most a bin for each {100 / share:.3g} records"
        )
        return [_row(one, f"{name}.max_bins_percent", share, ruling, reason)]
    if kind == "AddNoiseToMinMax":
        low, high = (float(cleanser.get(key, math.nan)) for key in ("min_noise_level", "max_noise_level"))
        if not 0 < low <= high:
            return [_row(one, f"{name}.min_noise_level", low, "off", "noise of zero is allowed")]
        reason = (
            f"the true extreme lies within {low:.3g} to {high:.3g} of the sent one, relative: its sign and "
            "order of size are sent as they are"
        )
        return [_row(one, f"{name}.min_noise_level", low, "cannot be told", reason)]
    return [_row(one, name, math.nan, "cannot be told", f"{kind} is no cleanser that this check knows")]


def _placed(one: Filter) -> list[Judged]:
    """Who may take the filter away: the uploader, or a job that names another scope."""
    if one.owner == "job":
        return [
            _row(
                one,
                "owner",
                math.nan,
                "partly",
                "it is the uploaded job's, not the site's: the next job may lack it",
            )
        ]
    if one.scopes > 1 or not one.default:
        where = f"scope '{one.scope}'" + ("" if one.default else ", which is not the default one")
        return [_row(one, "scope", math.nan, "partly", f"it is of {where}: a job chooses its scope itself")]
    return []


def _row(one: Filter, setting: str, declared: float, ruling: Ruling, reason: str) -> Judged:
    return Judged(
        defense=one.name,
        setting=setting,
        declared=declared,
        client=None,
        observation=unclear("none", 0, reason),
        ruling=ruling,
        reason=reason,
    )


def _mechanism(name: str, **arguments: Any) -> Mechanism:
    mechanism: Mechanism = create(load("defenses", name), arguments).describe()
    return mechanism


_READERS: Final[Mapping[str, Callable[[Filter, Sequence[Update]], Read]]] = {
    "PercentilePrivacy": _percentile,
    "SVTPrivacy": _sparse_vector,
    "ExcludeVars": _exclude,
}
