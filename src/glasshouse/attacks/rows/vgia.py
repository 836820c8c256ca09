"""VGIA: a first layer of parallel neurons cuts the rows of a batch into slabs, which are read with a proof.

Groups of neurons share a direction and have graded biases; everything behind the first layer is one linear
region with nearly constant outputs. A row's signal then depends on its target alone, and differences of
neighbouring neurons are sums over the rows between two cuts (:mod:`.slabs`).

How many rows a slab holds is what must be proved. With two classes, the server sets the probability p of the
first so that no other numbers (n0, n1) of rows, up to the batch, have the signal n1 p - n0 (1 - p) of one
row. With more classes, and with squared errors, a second round on the same rows with other output biases
shifts every row's signal by one known constant: the difference of the rounds counts rows.

Source: VGIA, 2604.15063: equal directions, graded cuts, the linear region, isolation that the server can
verify. Ours: three directions and peeling instead of bisection over rounds, cuts at quantiles of public
rows, the two proofs of a count.

Breaks when: a client looks for repeated rows in a layer; clients send parameters (the signal is below their
rounding); noise is above one row's signal; rows are twins, which always share a slab.

Shape letters: G groups, M neurons of a group, F entries of an encoded row, K classes.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final, final

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.inversion.linear_input import PASSIVE, find_first_linear
from glasshouse.attacks.parts.readout import summed
from glasshouse.attacks.parts.readout.linear_leakage import smoothed_thresholds
from glasshouse.attacks.parts.replica import normalization
from glasshouse.attacks.rows.slabs import Floats, Peeling, Read, Slabs, inside
from glasshouse.attacks.tabular import Certainty, CertifiedRows
from glasshouse.errors import Inapplicable
from glasshouse.examples import Batch
from glasshouse.interfaces import mean_loss
from glasshouse.limits import check_ranges
from glasshouse.modalities.row import Row
from glasshouse.models.build import build, load
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.tasks.base import LabelSignal, Task
from glasshouse.tasks.regression import Regression
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Crafted

SUBJECT: Final = "attack 'vgia'"
QUIET: Final = 1e-8
"""Largest change of an output by all rows' values: below the rounding of an output of order 1."""
PARTS: Final = ("weight", "bias")
FAR: Final = 10.0
"""The first cut lies so many ranges of the public rows below them, so that every row is above it."""
NEARLY: Final = 0.05
"""Distance from 1 up to which a count of rows is 1."""
SPREAD: Final = 0.05
"""The server looks for its p so near the public share of the class."""
LEAST: Final = 0.05
"""Its p is no nearer to 0 or 1."""
MOST: Final = 30.0
"""Largest ratio of the weights that two columns get for how little they vary."""


@final
@dataclass(frozen=True, kw_only=True)
class Vgia:
    """The attack and its settings.

    Args:
        groups: directions among which the first layer's neurons are shared out.
    """

    card: ClassVar[Card] = Card(
        title="VGIA",
        summary="parallel neurons cut a batch of rows into slabs: rows and targets with a proof",
        source="2604.15063 (VGIA); peeling and proofs of counts are our own",
        claims=("reconstruction", "certified_rows"),
        threat="malicious server: sets parameters, keeps the architecture, sees only the sum",
        grants=("auxiliary",),
        details={"attribution": "none: it cannot say whose row it is", "structure": "unchanged"},
        control={
            **summed.crafting_control(
                "parameters",
                batch=8,
                rounds=16,
                data={"source": "clinic", "examples": 300, "auxiliary": 400},
                model={"name": "mlp", "hidden": "96,16"},
            ),
            "setting": "secure sums of 2 clients with 8 rows of a made-up clinic each, 16 rounds, no defence",
            "metric": "rows_certified",
        },
        offers=(Offer(strength=0.95, seconds=1),),
    )
    needs: ClassVar[Needs] = replace(
        summed.crafting_needs("parameters", modalities=frozenset({"row"})), protocols=frozenset({"fedsgd"})
    )
    budget: ClassVar[None] = None

    groups: Annotated[int, Ge(1), Le(16)] = 4

    def __post_init__(self) -> None:
        check_ranges(self, SUBJECT)

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models that are not a chain of linear layers and ReLUs, and other losses."""
        units = dict(build(architecture).named_parameters())[f"{_chain(architecture)[0]}.bias"]
        task = architecture.task
        squares = isinstance(task, Regression) and task.targets == 1 and task.loss_name == "squared"
        if not squares and not (task.one_label and task.signal == LabelSignal()):
            raise Inapplicable(
                SUBJECT,
                needs="plain cross-entropy, or squared errors of one number",
                got=repr(task),
                fix="use double_span or spear, which read rows under other losses",
            )
        if len(units) < 3 * self.groups:
            raise Inapplicable(
                SUBJECT,
                needs=f"a first layer of at least {3 * self.groups} neurons, 3 for each group",
                got=f"{len(units)}",
                fix="audit a wider model, or set attacks.groups lower",
            )

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """Parallel neurons in the first layer, and a linear region behind it.

        Where a count takes two rounds, every second one repeats the cuts with other output biases.
        """
        one, auxiliary = view.rounds[-1], view.grants.auxiliary
        assert auxiliary is not None  # needs.grants
        architecture, key = view.terms.architecture, _key(one)
        names, biases = _chain(architecture), _outputs(view, auxiliary)
        tensors = {name: t.cpu() for name, t in one.broadcast.tensors.items()}
        before = view.rounds[-2] if len(view.rounds) > 1 else None
        again = before is not None and f"{_key(before)}.waits" in view.memory
        memory: dict[str, Tensor] = {}
        if before is not None and again:
            tensors |= {name: t.cpu() for name, t in before.broadcast.tensors.items()}
            memory |= {f"{key}.{part}": t for part, t in zip(PARTS, _sum(before, view), strict=True)}
        else:
            neurons = self._neurons(view, auxiliary, len(tensors[f"{names[0]}.bias"]), rng=rng)
            tensors |= {f"{names[0]}.{part}": t for part, t in zip(PARTS, neurons, strict=True)}
            tensors |= _linear_region(tensors, names, auxiliary.inputs.cpu(), architecture)
        # The last layer's bias alone sets the outputs; in the second of two rounds it shifts all signals.
        signals = []
        for bias in biases:
            tensors[f"{names[-1]}.bias"] = bias
            signals.append(_signals(architecture, tensors, auxiliary))
        if again or len(biases) == 1:
            memory[f"{key}.signals"] = torch.stack(signals)
        else:
            tensors[f"{names[-1]}.bias"] = biases[0]
            memory[f"{key}.waits"] = torch.ones(1)
        return Crafted(default=replace(one.broadcast, tensors=tensors), memory=memory)

    def _neurons(self, view: View, auxiliary: Batch, units: int, *, rng: Rng) -> tuple[Tensor, Tensor]:
        """Weight and bias of the first layer: random directions, cuts at quantiles of public rows."""
        rows = auxiliary.inputs.cpu().double()
        scale, shift = _unit(view.terms.architecture)
        draws = torch.randn(self.groups, rows.shape[1], generator=rng.child("directions").torch())
        # Numbers that vary little count as much as others, so that rows that differ only there part, too.
        spread = rows.std(0)
        directions = draws.double() / spread.clamp_min(float(spread.max()) / MOST)
        weight, bias = rows.new_zeros(units, rows.shape[1]), rows.new_zeros(units)
        each = units // self.groups
        for g, a in enumerate(directions):
            at = rows @ a
            low = at.min() - FAR * (at.max() - at.min())
            cuts = torch.cat([low[None], smoothed_thresholds(at, each - 1)])
            own = slice(g * each, (g + 1) * each)
            weight[own], bias[own] = a * scale, a @ shift - cuts
        # Neurons that are left over do what the first one does.
        weight[self.groups * each :], bias[self.groups * each :] = weight[0], bias[0]
        return weight.float(), bias.float()

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The rows of every round whose counts can be proved, with labels where there are classes."""
        del rng  # deterministic
        claims: list[Claim] = []
        for one in view.rounds:
            if f"{_key(one)}.signals" in view.memory:
                claims += self._read(one, view)
            elif f"{_key(one)}.waits" in view.memory:
                claims.append(CertifiedRows.silence(About(rounds=(one.round,)), view.terms))
        return tuple(claims)

    def _read(self, one: RoundView, view: View) -> tuple[Claim, ...]:
        architecture, key = view.terms.architecture, _key(one)
        table, signals = architecture.inputs, view.memory[f"{key}.signals"].double().cpu().numpy()
        assert isinstance(table, Row)  # needs.modalities
        total, examples = [t.numpy() for t in _sum(one, view)], _examples(one)
        if len(signals) == 1:
            unit = float(abs(signals[0, 1] - signals[0, 0]))
            single = signals[0] / unit
            near = 0.4 * narrowest(float(abs(single[0])), examples)
            counted = total
        else:
            before = [view.memory[f"{key}.{part}"].double().cpu().numpy() for part in PARTS]
            counted = [now - then for now, then in zip(total, before, strict=True)]
            unit, single, near = float(signals[1, 0] - signals[0, 0]), np.ones(1), NEARLY
        slabs = self._slabs(one, architecture)
        groups, count = slabs.cuts.shape

        def share(values: Floats) -> Floats:
            parts = values[: groups * count].reshape(groups, count, *values.shape[1:])
            return inside(np.asarray(parts))

        scale, shift = (t.numpy() for t in _unit(architecture))
        raw = counted[0] * scale + counted[1][:, None] * shift
        found = Peeling(
            table=table,
            slabs=slabs,
            weight=share(raw) / unit,
            signal=share(counted[1]) / unit,
            target=share(total[1]),
            single=single,
            near=near,
            most=examples,
        ).read()
        return _claims(
            About(rounds=(one.round,)), found, _targets(found.targets, signals[-1], architecture.task)
        )

    def _slabs(self, one: RoundView, architecture: Architecture) -> Slabs:
        """What the neurons that were sent measure, as float32 rounded it."""
        name, tensors = _chain(architecture)[0], one.broadcast.tensors
        weight, bias = (tensors[f"{name}.{part}"].double().cpu().numpy() for part in PARTS)
        scale, shift = (t.numpy() for t in _unit(architecture))
        each = len(bias) // self.groups
        used = slice(0, self.groups * each)
        directions = weight[used].reshape(self.groups, each, -1)[:, 0] / scale
        cuts = (directions @ shift)[:, None] - bias[used].reshape(self.groups, each)
        return Slabs(directions=directions, cuts=cuts)


def narrowest(share: float, examples: int) -> float:
    """Distance of two numbers n1 p - n0 (1 - p) with up to ``examples`` rows each, for p = ``share``.

    The difference of two such numbers is N p - m with whole N and m, and |N| up to ``examples``.

    Examples:
        >>> round(narrowest(0.25, 3), 3), round(narrowest(0.25, 4), 3)
        (0.25, 0.0)
    """
    times = np.arange(1, examples + 1) * share
    return float(np.abs(times - np.round(times)).min())


def best_share(public: float, examples: int) -> float:
    """The share near a public one at which numbers of rows are furthest apart in their signals."""
    shares = np.linspace(public - SPREAD, public + SPREAD, 801)
    shares = shares[(shares > LEAST) & (shares < 1 - LEAST)]
    return float(shares[np.argmax([narrowest(float(p), examples) for p in shares])])


def _key(one: RoundView) -> str:
    return f"vgia.{one.round}"


def _chain(architecture: Architecture) -> list[str]:
    """Names of the linear layers, first to last.

    Raises:
        Inapplicable: other layers, one without a bias, or no hidden layer of 2 neurons or more a group.
    """
    model = build(architecture)
    first = find_first_linear(model, architecture.input_shape, subject=SUBJECT)
    leaves = {n: m for n, m in model.named_modules() if not list(m.children()) and n != "normalize"}
    linear = [n for n, m in leaves.items() if isinstance(m, nn.Linear)]
    odd = [n for n, m in leaves.items() if not isinstance(m, (nn.Linear, nn.ReLU, *PASSIVE))]
    odd += [n for n in linear if leaves[n].bias is None]
    if odd or len(linear) < 2:
        raise Inapplicable(
            SUBJECT,
            needs="a chain of two or more linear layers with biases, and ReLUs",
            got=f"'{odd[0]}', a {type(leaves[odd[0]]).__name__}" if odd else f"only '{first}'",
            fix="audit an mlp with a hidden layer",
        )
    return linear


def _unit(architecture: Architecture) -> tuple[Tensor, Tensor]:
    """Scale and shift, (F,) float64, with entry = input of the first layer * scale + shift."""
    scale, shift = normalization(build(architecture), architecture.input_shape)
    return scale.double().flatten(), shift.double().flatten()


def _linear_region(
    tensors: dict[str, Tensor], names: list[str], rows: Tensor, architecture: Architecture
) -> dict[str, Tensor]:
    """Layers behind the first one that pass one signal to all its neurons, and outputs that hardly move."""
    scale, shift = _unit(architecture)
    inputs = (rows.double() - shift) / scale
    first = (tensors[f"{names[0]}.{part}"].double() for part in PARTS)
    weight, bias = first
    largest = float((inputs @ weight.T + bias).max())
    region: dict[str, Tensor] = {}
    for name in names[1:]:
        own = tensors[f"{name}.weight"]
        gain = QUIET / largest if name == names[1] else 1.0
        region[f"{name}.weight"] = torch.full_like(own, gain / own.shape[1])
        region[f"{name}.bias"] = torch.ones_like(tensors[f"{name}.bias"])
    last = region[f"{names[-1]}.weight"]
    if len(last) > 1:  # a class of its own for each label
        last *= torch.linspace(-1, 1, len(last))[:, None]
    return region


def _outputs(view: View, auxiliary: Batch) -> tuple[Tensor, ...]:
    """Biases of the last layer: one for a count in one round, two for a count in two."""
    task, labels = view.terms.architecture.task, auxiliary.labels.cpu().double()
    if isinstance(task, Regression):
        middle, spread = labels.mean(), labels.std()
        return tuple((middle + shift * spread).reshape(1).float() for shift in (0.0, 2.0))
    classes = view.terms.architecture.classes
    if classes > 2:
        return torch.zeros(classes), torch.linspace(-1, 1, classes)
    cohort = view.terms.cohort * view.terms.batch_size
    share = best_share(float((labels == 0).double().mean()), cohort)
    return (torch.tensor([share, 1 - share]).log(),)


def _signals(architecture: Architecture, tensors: dict[str, Tensor], auxiliary: Batch) -> Tensor:
    """The bias gradient of the first neuron under each label (K,); of squared errors, under 0 and 1."""
    model = build(architecture)
    load(model, tensors)
    model.eval()
    name = f"{_chain(architecture)[0]}.bias"
    numbers = isinstance(architecture.task, Regression)
    found = []
    for label in range(2 if numbers else architecture.classes):
        labels = torch.full((1,), label).to(auxiliary.labels.dtype)
        one = Batch(inputs=auxiliary.inputs[:1].cpu(), labels=labels)
        (gradient,) = torch.autograd.grad(mean_loss(model, one), [dict(model.named_parameters())[name]])
        found.append(gradient[0].double())
    return torch.stack(found)


def _sum(one: RoundView, view: View) -> tuple[Tensor, Tensor]:
    """Sums of the first layer's gradients over a round's rows, each counted once."""
    names = tuple(f"{_chain(view.terms.architecture)[0]}.{part}" for part in PARTS)
    total = summed.sum_of_round(one, terms=view.terms, names=names, subject=SUBJECT)
    weight, bias = (total.gradient[name].cpu() / total.unit for name in names)
    return weight, bias


def _examples(one: RoundView) -> int:
    if one.aggregate is not None:
        return one.aggregate.examples
    return sum(update.examples for update in one.updates.values())


def _targets(found: Floats, signals: Floats, task: Task) -> Tensor:
    """Labels, the class of the nearest signal; or numbers, as a signal is linear in them."""
    if isinstance(task, Regression):
        return torch.from_numpy((found - signals[0]) / (signals[1] - signals[0])).float()
    return torch.from_numpy(np.abs(found[:, None] - signals).argmin(1))


def _claims(about: About, found: Read, targets: Tensor) -> tuple[Claim, ...]:
    rows, sure = torch.from_numpy(found.rows).float(), torch.from_numpy(found.proved)
    levels = torch.where(sure, float(Certainty.PROVED), float(Certainty.GUESSED))
    return (
        Reconstruction(about=about, inputs=rows, labels=targets, confidence=levels),
        CertifiedRows(about=about, inputs=rows[sure], certainty=levels[sure]),
    )
