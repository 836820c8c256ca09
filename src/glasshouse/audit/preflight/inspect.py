"""List everything that an audit of a scenario would refuse, without running anything."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from glasshouse import registry
from glasshouse.attacks.base import Claim, ModelBound
from glasshouse.audit.attacking.needs import (
    attack_of,
    declared,
    foresee_refusal,
    promised_grants,
    refusal_of,
    unmet_by_examples,
)
from glasshouse.audit.captured.canary_file import read_canaries
from glasshouse.audit.preflight.data import data_problems
from glasshouse.audit.preflight.network import network_problems
from glasshouse.audit.preflight.outlook import Outlook, fault_of, look, look_at, without_memory
from glasshouse.audit.scoring.nulls import auxiliary_needed, null_names
from glasshouse.audit.scoring.pair import can_score
from glasshouse.cache import once
from glasshouse.errors import BadFile, BadScenario, Inapplicable, Problem
from glasshouse.metrics.base import Metric, ScoreContext, Wording
from glasshouse.metrics.statistics.share_out import MARGIN, victims_needed
from glasshouse.scenario.axes import cells
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.suite import Suite
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Architecture, Refusal

Warnings = list[tuple[str, Refusal]]


def problems(scenario: Scenario) -> list[Problem]:
    """All problems that prevent an audit of a scenario without axes."""
    return _problems(look(scenario))


def check_suite(suite: Suite) -> dict[str, Outlook]:
    """What is known of every cell of a suite, by its hash, if all of them can be audited.

    Raises:
        BadScenario: all problems, by scenario.
    """
    wrong: dict[Problem, None] = {}
    looks: dict[str, Outlook] = {}
    for scenario in suite.scenarios:
        where = f"{scenario.name} " if len(suite.members) > 1 else ""
        own = look_at(cells(scenario))
        every = [one for outlook in own.values() for one in _problems(outlook)]
        if not every and (refused := refused_altogether(own.values())) is not None:
            every = [refused]
        every = every or [one for outlook in own.values() for one in _unscored_metrics(outlook.scenario)]
        wrong |= dict.fromkeys(replace(one, path=where + one.path) for one in every)
        looks |= own
    if wrong:
        raise BadScenario(f"suite '{suite.name}'", list(wrong))
    return looks


def foreseen_refusals(looks: Iterable[Outlook]) -> Warnings:
    """(scenario, refusal) of attacks that some cell rules out. No error: the report states the reasons."""
    foreseen = ((outlook.scenario.name, one) for outlook in looks for one in _refusals_in([outlook]))
    return list(dict.fromkeys((name, refusal) for name, refusal in foreseen if refusal is not None))


def _problems(outlook: Outlook) -> list[Problem]:
    scenario, survey, wrong = outlook.scenario, outlook.survey, list(outlook.wrong)
    if survey is not None:
        wrong += [*data_problems(scenario, survey), *_labels(scenario, survey.classes)]
    if not any(problem.path == "data.source" for problem in wrong):
        wrong += network_problems(outlook)
    return [
        *wrong,
        *_auxiliary(scenario),
        *_baselines(scenario),
        *_single_victim(scenario),
        *_canaries(scenario),
        *_limits(scenario, None if survey is None else survey.classes),
    ]


def _auxiliary(scenario: Scenario) -> Iterator[Problem]:
    """Report too few auxiliary images for the null adversary, without which no score is reported."""
    data, federation = scenario.data, scenario.federation
    kinds = {registry.require_declaration("metrics", m.name, "claim", str) for m in scenario.audit.metrics}
    guesses = (registry.require_declaration("claims", kind, "guessed", bool) for kind in kinds)
    if data.domains.targets or not any(guesses):
        return
    behind = federation.batch_size if federation.kind == "gradient" else data.examples
    together = behind * (federation.cohort_size if federation.secure_sum else 1)
    if data.auxiliary < auxiliary_needed(together):
        yield Problem(
            path="data.auxiliary",
            needs=f"at least {auxiliary_needed(together)}: the null adversary guesses {together} examples "
            "from half of them, and is chosen on the other half",
            got=str(data.auxiliary),
            hint="raise data.auxiliary, or lower the examples behind an update",
        )


def _unscored_metrics(scenario: Scenario) -> Iterator[Problem]:
    """Report metrics that score no claim of any attack, if all attacks declare their claims."""
    declared = [registry.card("attacks", attack.name).claims for attack in scenario.attacks]
    if not all(declared):
        return
    kinds = {name: _kind(name) for kinds in declared for name in kinds}
    for i, (plugin, metric) in enumerate(zip(scenario.audit.metrics, _metrics(scenario), strict=True)):
        if not any(can_score(kind, metric) for kind in kinds.values()):
            yield Problem(
                path=f"audit.metrics[{i}]",
                needs=f"a metric of what the attacks claim: {', '.join(sorted(kinds))}",
                got=f"'{plugin.name}', which scores claims of kind '{metric.claim}'",
                hint="leave it out, or add an attack that makes such claims",
            )


def unscored_claims(looks: Iterable[Outlook]) -> tuple[str, ...]:
    """The attacks none of whose claims any metric of their scenario scores, each in a sentence.

    They run and are shown, so this is no error. Attacks that do not declare their claims are left out.
    """
    found = [
        f"attack '{attack.label or attack.name}' claims {', '.join(kinds)}, which no metric of {where} "
        "scores: it will run and nothing will be found; add such a metric to audit.metrics"
        for scenario in (look.scenario for look in looks)
        for where, metrics in [(f"scenario '{scenario.name}'", _metrics(scenario))]
        for attack in scenario.attacks
        if (kinds := registry.card("attacks", attack.name).claims)
        and not any(can_score(_kind(kind), metric) for kind in kinds for metric in metrics)
    ]
    return tuple(dict.fromkeys(found))


def silences_out_of_reach(looks: Iterable[Outlook]) -> tuple[str, ...]:
    """The scenarios that set a margin for which they attack too few victims, each in a sentence."""
    found = []
    for scenario in (outlook.scenario for outlook in looks):
        margin, victims = scenario.audit.margin, _victims(scenario)
        if margin != MARGIN and victims is not None and (needed := victims_needed(margin)) > victims:
            found.append(
                f"audit.margin = {margin:g} of scenario '{scenario.name}' needs {needed:,} independent "
                f'victims of whom none comes out, and {victims:,} are attacked: "no leak found" will '
                "not be said; raise audit.victims or the margin, or add to audit.seeds"
            )
    return tuple(dict.fromkeys(found))


def _victims(scenario: Scenario) -> int | None:
    """How many updates are attacked one by one; None: they are not."""
    if scenario.federation.secure_sum or scenario.data.domains.targets:
        return None
    updates = len(scenario.audit.rounds) * scenario.federation.cohort_size
    return sum(min(draw.victims, updates) for draw in scenario.draws)


def _metrics(scenario: Scenario) -> list[Metric]:
    return [registry.create(registry.load("metrics", m.name), m.arguments) for m in scenario.audit.metrics]


def _kind(name: str) -> type[Claim]:
    return cast("type[Claim]", registry.load("claims", name))


def _single_victim(scenario: Scenario) -> Iterator[Problem]:
    """Report a single victim without a bounded metric, which alone has an interval for it."""
    if _victims(scenario) != 1:
        return
    metrics = scenario.audit.metrics
    wordings = [registry.require_declaration("metrics", m.name, "wording", Wording) for m in metrics]
    ranges = [wording.range for wording in wordings]
    if ranges and not any(math.isfinite(low) and math.isfinite(high) for low, high in ranges):
        yield Problem(
            path="audit.victims",
            needs="at least 2 victims, or a metric with a lower and an upper end (psnr, ssim)",
            got="1",
            hint="raise federation.clients and audit.victims, or add a metric",
        )


def _canaries(scenario: Scenario) -> Iterator[Problem]:
    """Report missing canaries of a capture with a claimed ε, which only they can test."""
    if not (scenario.captured and scenario.audit.epsilon.claimed):
        return
    try:
        read_canaries(Path(scenario.captured))
    except BadFile as error:
        got = f"{error.subject}: {error.got}"
        yield Problem(path="audit.epsilon.claimed", needs=error.needs, got=got, hint=error.fix)


def _limits(scenario: Scenario, classes: int | None) -> Iterator[Problem]:
    """Report limits on a gain that no attack could ever break: they would hold whatever comes out."""
    audit = scenario.audit
    others = torch.zeros(audit.distractors, 1) if audit.distractors else None
    context = ScoreContext(distractors=others, classes=classes)
    plugins = {metric.label or metric.name: metric for metric in audit.metrics}
    for name, limit in scenario.policy.max_gain.items():
        if name not in plugins:
            continue  # reported elsewhere
        metric: Metric = registry.create(
            registry.load("metrics", plugins[name].name), plugins[name].arguments
        )
        low, high = metric.range
        chance = metric.chance(context)
        start = (low if metric.higher_leaks else high) if chance is None else chance
        reach = (high - start) if metric.higher_leaks else (start - low)
        if limit < 0:
            yield Problem(
                path=f"policy.max_gain.{name}",
                needs="a limit of 0 or more: guessing gains 0",
                got=f"{limit:g}",
                hint="raise the limit",
            )
        if math.isfinite(reach) and limit >= reach:
            guess = "" if chance is None else f", since guessing reaches {chance:.3g}"
            yield Problem(
                path=f"policy.max_gain.{name}",
                needs=f"a limit below {reach:.3g}: no attack can gain more{guess}",
                got=f"{limit:g}",
                hint="raise audit.distractors, or lower the limit" if chance else "lower the limit",
            )


def _baselines(scenario: Scenario) -> Iterator[Problem]:
    known = null_names()
    for i, name in enumerate(scenario.audit.baselines):
        if name not in known:
            yield Problem(
                path=f"audit.baselines[{i}]",
                needs=f"one of {', '.join(known)}",
                got=f"'{name}'",
                hint=f"{registry.nearest_names(name, known)}; left out, the strongest is chosen",
            )


def _labels(scenario: Scenario, classes: int) -> Iterator[Problem]:
    """Report attacks on an attribute whose target class does not exist."""
    for i, attack in enumerate(scenario.attacks):
        settings = attack.arguments.get("settings", {})
        label = settings.get("label", 0) if isinstance(settings, dict) else 0
        if isinstance(label, int) and not 0 <= label < classes:
            yield Problem(
                path=f"attacks[{i}].settings.label",
                needs=f"a class from 0 to {classes - 1}",
                got=str(label),
                hint=f"'{scenario.data.source}' has {classes} classes",
            )


def refused_altogether(looks: Iterable[Outlook]) -> Problem | None:
    """A problem if no attack can run in any cell; if only some cells rule attacks out, that is a result."""
    first: Refusal | None = None
    for refusal in _refusals_in(looks):
        if refusal is None:
            return None
        first = first or refusal
    if first is None:
        return None
    needs = f"an attack that can run; {first.subject} needs {first.needs}"
    return Problem(path="attacks", needs=needs, got=first.got, hint=first.fix)


def _refusals_in(looks: Iterable[Outlook]) -> Iterator[Refusal | None]:
    """Why each attack is ruled out in each cell; None: no reason is known."""
    for outlook in looks:
        for attack in outlook.scenario.attacks:
            yield refusal_in(outlook, attack)


def refusal_in(outlook: Outlook, attack: Plugin) -> Refusal | None:
    """Why a cell rules an attack out, by its needs or the model; None: it does not.

    Raises:
        GlasshouseError: the networks are unknown.
    """
    scenario = outlook.scenario
    if (refusal := foresee_refusal(scenario, attack)) is not None:
        return refusal
    if outlook.wrong:
        return None  # reported elsewhere
    if outlook.trouble is not None:
        raise outlook.trouble
    network, name = outlook.networks[0][1], attack.label or attack.name
    key = ["attack on a model", attack.name, repr(attack.arguments), repr(network)]
    return unmet_by_examples(
        declared(attack)[0], f"attack '{name}'", network, promised_grants(scenario)
    ) or once(key, partial(_on_model, attack, network))


def _on_model(plugin: Plugin, network: Architecture) -> Refusal | None:
    attack = attack_of(plugin)
    if not isinstance(attack, ModelBound) or fault_of(network) is not None:
        return None
    try:
        with without_memory(network), torch.no_grad():
            attack.check_model(network)
    except Inapplicable as error:
        return refusal_of(error)
    except NotImplementedError:
        pass  # its computation depends on values, which the meta device lacks
    return None
