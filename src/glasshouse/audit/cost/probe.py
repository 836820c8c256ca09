"""Time short pieces of an audit, from which ``glasshouse check`` estimates the time of the whole."""

import importlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, final

import torch

from glasshouse.attacks.budget import PROBE, Budget
from glasshouse.audit.attacking.needs import declared
from glasshouse.audit.cost.calls import Calls, cache_in, with_few_clients
from glasshouse.audit.cost.clock import seconds_on, steady_seconds
from glasshouse.audit.cost.deadline import OutOfTime, deadline
from glasshouse.audit.cost.defended import Defenses
from glasshouse.audit.cost.rows import inputs_of, untrained
from glasshouse.audit.cost.timings import Timing
from glasshouse.audit.scoring.rehearsal import Scoring, time_scoring
from glasshouse.audit.simulation.build import architecture_of, build
from glasshouse.audit.simulation.deal import deal_data, require_part
from glasshouse.audit.simulation.pretraining import ascent_of
from glasshouse.audit.simulation.rehearsal import (
    Played,
    client_passes,
    shortened,
    time_simulation,
    time_with_few_images,
)
from glasshouse.errors import Inapplicable
from glasshouse.executors.local import PRELOAD
from glasshouse.interfaces import mean_loss
from glasshouse.models import build as models
from glasshouse.models.fit import fit
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Batch

PROBED_IMAGES = 16
"""Largest batch in a probe of a training or an inversion, images."""
FEW_IMAGES = 4
"""Batch with which a training and a gradient are tried first, and that stands for the whole if it is slow."""
PROBED_VALUES = 2**17
"""A training may use more images up to this many values: a batch of small images is mostly overhead."""
WHOLE = 6.0
"""CPU seconds after which a measurement in progress is stopped."""
LONGEST = 5.2
"""CPU seconds after which no further attack is measured; some measurements are always made."""
ENOUGH = 4.0
"""CPU seconds after which nothing is measured that another setting of the same attack can stand in for."""
LAST = 0.5
"""CPU seconds that a measurement gets, however late it is."""
FEDERATION = 2.0
"""CPU seconds of a federation after which it is stopped."""
SCORING = 2.0
"""CPU seconds of scoring after which it is stopped, so that time is left for attacks."""
SLOW = 1.0
"""CPU seconds of a round's gradients from which few clients stand for all."""
HEAVY = 0.5
"""CPU seconds of a step from which it is not repeated: start-up costs are a small part of it."""
T = TypeVar("T")


@final
class Stopwatch:
    """The timer of ``glasshouse check``: untrained models, one round, one victim, a short search.

    Args:
        device: on which attacks are timed.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device, self._began = device, time.process_time()
        for module in PRELOAD:  # a deadline that stops an import leaves a broken module
            importlib.import_module(module)
        home = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        self._calls = Calls(device, Path(home), self._left)
        self._gradients: dict[str, dict[int, float]] = {}
        self._defenses = Defenses(exhausted=lambda: self.exhausted, gradient=self.gradient)

    @property
    def device(self) -> str:
        """The device of attacks."""
        return self._device

    @property
    def exhausted(self) -> bool:
        """Whether ``ENOUGH`` seconds are used up."""
        return self._left() < LONGEST - ENOUGH

    @property
    def spent(self) -> bool:
        """Whether no time is left at all."""
        return self._left() < 0

    def _left(self) -> float:
        return LONGEST - (time.process_time() - self._began)

    def _in_time(self, run: Callable[[], T], otherwise: Callable[[float], T], *, most: float = WHOLE) -> T:
        """What ``run`` returns, or ``otherwise`` for the CPU seconds that it took until it was stopped."""
        started = time.process_time()
        try:
            with deadline(min(most, max(LAST, WHOLE - (started - self._began)))):
                return run()
        except OutOfTime:
            return otherwise(time.process_time() - started)

    def attack(self, scenario: Scenario, plugin: Plugin, budget: Budget) -> Timing | None:
        """Time one setting of an attack; None: it has no short version, or does not support the model.

        Where time is over first, what was measured until then, or a lower bound; None: nothing was.
        """
        return self._in_time(
            partial(self._attack, scenario, plugin, budget), lambda _: self._calls.unfinished()
        )

    def _attack(self, scenario: Scenario, plugin: Plugin, budget: Budget) -> Timing | None:
        self._calls.forget()
        timing: Timing | None
        if self._takes_too_long(scenario):
            timing = None
        elif budget.pieces is not None:
            unit = _time_pieces(scenario, budget)
            timing = None if unit is None else Timing(unit=unit)
        elif not (budget.probe or not (budget.amount or budget.training)):
            timing = None
        else:
            timing = self._calls.time(scenario, plugin, budget)
        if timing is None or not declared(plugin)[0].changes:
            return timing
        return self._calls.with_crafting(timing, scenario, plugin, budget)

    def pretraining(self, scenario: Scenario) -> Timing:
        """CPU seconds of a forward and backward pass of one image in training."""
        return self._in_time(
            lambda: Timing(unit=self._pretraining(scenario)),
            lambda _: Timing(unit=self.gradient(scenario) / _batch_size(scenario), estimated=True),
        )

    def _pretraining(self, scenario: Scenario) -> float:
        federation = build(shortened(scenario), seed=scenario.seed)
        how, public = scenario.model.pretraining, require_part(federation.public, "public")
        most = max(PROBED_IMAGES, PROBED_VALUES // public.inputs[0].numel())
        sample = public.pick(torch.arange(min(most, how.batch_size, len(public))))
        model, against = models.build(federation.setting.terms.architecture, rng=Rng.root(0)), ascent_of(how)

        def train(images: Batch, epochs: int) -> None:
            short, label = how.model_copy(update={"epochs": epochs}), "a probe of the training"
            fit(model, images, short, rng=Rng.root(0), perturb=against, label=label)

        few = sample.pick(torch.arange(min(FEW_IMAGES, len(sample))))
        each = 1 + (against.taken if against else 0)
        spent = seconds_on("cpu", partial(train, few, 1))
        if spent > HEAVY / PROBE:
            return spent / (len(few) * each)
        return seconds_of(partial(train, sample, PROBE)) / (PROBE * len(sample) * each)

    def gradient(self, scenario: Scenario) -> float:
        """Seconds of one client's gradient of one batch, on the device of attacks; told from few images.

        With little time left, another batch of the same network may stand for it.
        """
        size, key = _batch_size(scenario), repr((untrained(scenario), inputs_of(scenario)))
        per_image = self._gradients.setdefault(key, {})
        if size not in per_image and not (per_image and self.exhausted):
            per_image[size] = self._gradient_per_image(scenario, size)
        return size * per_image.get(size, next(iter(per_image.values())))

    def _gradient_per_image(self, scenario: Scenario, size: int) -> float:
        dealt = deal_data(shortened(scenario), seed=scenario.seed)
        private = require_part(dealt.roles.private, "private")
        most = max(PROBED_IMAGES, PROBED_VALUES // private.inputs[0].numel())
        batches = [private.pick(torch.arange(min(size, n, len(private)))) for n in (FEW_IMAGES, most)]
        few, batch = (
            replace(one, inputs=one.inputs.to(self._device), labels=one.labels.to(self._device))
            for one in batches
        )
        agreed = architecture_of(scenario, dealt)
        network = models.build(agreed, rng=Rng.root(0)).to(self._device).eval()

        def differentiate(images: Batch) -> None:
            network.zero_grad()
            loss = mean_loss(network, images)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            float(loss.detach())  # waits for an accelerator

        enough = HEAVY / 2 if self.exhausted else HEAVY
        spent = seconds_on(self._device, partial(differentiate, few))
        if spent >= enough:
            return spent / len(few)
        timed = batch if spent * len(batch) / len(few) < enough else few
        return steady_seconds(self._device, partial(differentiate, timed)) / len(timed)

    def simulation(self, scenario: Scenario, *, cold: bool) -> Played:
        """CPU seconds of a passive federation, without the imports that all workers share."""
        self._forget(scenario)  # played for an attack, it would take no time
        played: list[Played] = []
        time_it = partial(
            time_simulation,
            scenario,
            cold=cold,
            into=self._calls.folder_of,
            lighten=self._with_few_clients,
            report=played.append,
        )

        def stopped(seconds: float) -> Played:
            if played:
                return replace(played[-1], estimated=True)
            self._forget(scenario)  # half of a federation
            self._calls.light.add(scenario.name)
            return self._estimate(scenario, seconds)

        with tempfile.TemporaryDirectory() as place, cache_in(place):
            return self._in_time(time_it, stopped, most=FEDERATION)

    def _forget(self, scenario: Scenario) -> None:
        """Delete its federation, with all clients and with few."""
        for one in (scenario, with_few_clients(scenario)):
            shutil.rmtree(self._calls.folder_of(one), ignore_errors=True)

    def _with_few_clients(self, scenario: Scenario) -> tuple[Scenario, float]:
        """The federation with few clients, and the seconds of the others, where these are many."""
        few, whole = with_few_clients(scenario), scenario.federation.clients
        if few.federation.clients == whole or scenario.federation.kind == "logits":
            return scenario, 0.0
        others = (1 - few.federation.clients / whole) * self._gradients_of(scenario)
        if others < SLOW:
            return scenario, 0.0
        self._calls.few.add(scenario.name)
        return few, others

    def _estimate(self, scenario: Scenario, spent: float) -> Played:
        """A stopped federation: its gradients stand for a round, or few images in a logit protocol."""
        if scenario.federation.kind == "logits":
            lower_bound = Played(one=spent, estimated=True)
            return self._in_time(partial(time_with_few_images, scenario), lambda _: lower_bound)
        seconds = self._gradients_of(scenario)
        return Played(one=seconds, further=seconds, estimated=True)

    def _gradients_of(self, scenario: Scenario) -> float:
        """Seconds of all gradients of a round."""
        batches = client_passes(shortened(scenario)) / _batch_size(scenario)
        return batches * self.gradient(scenario)

    def defenses(self, scenario: Scenario) -> float:
        """CPU seconds of the defences at gradients, for one update of one client."""
        return self._defenses.seconds(scenario)

    def scoring(self, scenario: Scenario) -> Scoring | None:
        """CPU seconds of scoring synthetic claims.

        Metrics that need a network trained for them count like the others.
        """
        if self._takes_too_long(scenario):
            return None
        folder = self._in_time(partial(self._calls.played, scenario), lambda _: None)
        if folder is None:
            return None
        return self._in_time(
            lambda: time_scoring(shortened(scenario), folder),
            partial(Scoring.at_least, metrics=max(1, len(scenario.audit.metrics))),
            most=SCORING,
        )

    def _takes_too_long(self, scenario: Scenario) -> bool:
        """Whether there is no federation to score or attack: one of a logit protocol that was stopped."""
        return scenario.name in self._calls.light and scenario.federation.kind == "logits"


def _batch_size(scenario: Scenario) -> int:
    """Number of examples in one batch of a client; with domains a client has as many as its classes give."""
    size, data = scenario.federation.batch_size, scenario.data
    return size if data.domains.targets else min(size, data.examples)


def seconds_of(run: Callable[[], object]) -> float:
    """CPU seconds of ``run`` after a warm-up, so that one-time costs are excluded."""
    run()
    started = time.process_time()
    run()
    return time.process_time() - started


def _time_pieces(scenario: Scenario, budget: Budget) -> float | None:
    """CPU seconds per unit and image; None: the attack does not support this model."""
    assert budget.pieces is not None
    federation = build(shortened(scenario), seed=scenario.seed)
    agreed = federation.setting.terms.architecture
    size, cohort = scenario.federation.batch_size, scenario.federation.cohort_size
    read = size * cohort if scenario.federation.secure_sum else cohort * min(size, budget.images)
    count = min(PROBED_IMAGES, read)  # the images of a round's clients are inverted together
    images = torch.rand((count, *agreed.input_shape), generator=torch.Generator().manual_seed(0))
    try:
        pieces = budget.pieces(agreed, federation.setting.start, images)
    except Inapplicable:
        return None
    spent = sum(seconds_of(piece.run) * piece.times for piece in pieces)
    return spent / (count * budget.units)
