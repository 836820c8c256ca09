"""Contract tests for attacks, shipped for authors of plug-ins.

Subclass :class:`AttackContract` as ``TestMyAttack`` and provide the fixtures ``name``, ``attack`` and
``view``; the tests are inherited. For an attack by an active server subclass :class:`ActiveAttackContract`
and provide ``settings`` in place of ``view``, which then comes from a toy federation run under the attack.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from glasshouse import registry
from glasshouse.attacks.base import ActiveAttack, Attack, Claim, ClassRepresentatives, Reconstruction
from glasshouse.attacks.objective import SearchingAttack, SearchingTogether
from glasshouse.attacks.sequences import Sequences
from glasshouse.audit.attacking.check import check_claims
from glasshouse.audit.attacking.claims import Unit
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.testing.fixtures import to_provide
from glasshouse.testing.toys import AttackedToy, play_attacked
from glasshouse.transcript.view import View
from glasshouse.wire import Crafted

__all__ = ["ActiveAttackContract", "AttackContract", "tensors_of"]


class AttackContract:
    """Contract of an attack, tested on one view that it accepts."""

    name = to_provide(str)
    """The registered name."""

    attack = to_provide(Attack)
    """The attack under test, with settings for a short run."""

    view = to_provide(View)
    """A view for its scope: one update, one round or a whole run."""

    def run(self, attack: Attack, view: View, seed: int = 0) -> tuple[Claim, ...]:
        """The attack's claims with a random stream of this seed."""
        return attack.run(view, rng=Rng.root(seed, salt="contract"))

    def test_claims_are_well_formed(self, name: str, attack: Attack, view: View) -> None:
        """At least one claim, about the given unit, with valid shapes, finite values and image range."""
        claims = self.run(attack, view)
        assert claims
        declared = registry.card("attacks", name).claims
        assert not declared or {c.kind for c in claims if c.scored} <= set(declared)
        rounds = tuple(r.round for r in view.rounds)
        client = next(iter(view.rounds[0].updates), None) if attack.needs.scope == "update" else None
        check_claims(claims, view=view, unit=Unit(rounds=rounds, client=client), subject=name)

    def test_same_rng_same_claims(self, attack: Attack, view: View) -> None:
        """The same stream gives bit-identical claims; the global generator is neither used nor changed."""
        check_repeatable(lambda: self.run(attack, view))

    def test_leaves_the_view_alone(self, attack: Attack, view: View) -> None:
        """No tensor of the view is changed."""
        before = {k: t.clone() for k, t in tensors_of(view).items()}
        self.run(attack, view)
        after = tensors_of(view)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[k], after[k]) for k in before)

    def test_is_registered_with_a_card(self, name: str, attack: Attack) -> None:
        """``glasshouse list`` can show it, and an audit can run its controls."""
        assert registry.load("attacks", name) is type(attack)
        card = registry.card("attacks", name)
        assert card.summary
        assert card.threat
        assert card.control

    def test_declares_a_valid_budget(self, attack: Attack) -> None:
        """None for a closed form; else counts that are not negative, and a unit to count."""
        budget = attack.budget
        if budget is None:
            return
        assert budget.unit
        assert min(budget.amount, budget.images, budget.training, budget.gradients) >= 0
        assert budget.restarts >= 1

    def test_its_own_loss_can_be_evaluated(self, attack: Attack, view: View) -> None:
        """The objective of a searching attack is a number per candidate, the same at every call."""
        if not isinstance(attack, SearchingAttack):
            return
        for claim in self.run(attack, view):
            if not isinstance(claim, Reconstruction | ClassRepresentatives | Sequences):
                continue
            candidate = claim.tokens if isinstance(claim, Sequences) else claim.inputs
            if not len(candidate):
                continue
            searched = attack.objective(view, claim.about, rng=Rng.root(0, salt="contract"))
            known = None if isinstance(claim, Sequences) else claim.labels
            labels = torch.zeros(len(candidate)).long() if known is None else known
            one, two = (searched.loss(candidate[None], labels[None]) for _ in range(2))
            assert one.shape == (1,)
            assert bool(one.isfinite().all())
            assert torch.equal(one, two)
            assert searched.noise >= 0
            # Several searches at once must not be other searches.
            if isinstance(attack, SearchingTogether):
                rngs = [Rng.root(0, salt="contract")] * 2
                for other in attack.objectives((view, view), rngs=rngs):
                    assert torch.equal(other.loss(candidate[None], labels[None]), one)

    def test_is_frozen(self, attack: Attack) -> None:
        """Its settings are a frozen dataclass."""
        assert is_dataclass(type(attack))
        with pytest.raises((AttributeError, TypeError)):
            attack.needs = None  # type: ignore[misc,assignment]  # setting it must fail


class ActiveAttackContract(AttackContract):
    """Contract of an attack that crafts the server's messages and reads the clients' answers."""

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        """Settings of the toy federation: arguments of :func:`glasshouse.testing.toys.toy`."""
        return {}

    @pytest.fixture
    def played(self, attack: ActiveAttack, settings: Mapping[str, Any]) -> AttackedToy:
        """A toy federation, run under the attack."""
        return play_attacked(attack, **settings)

    @pytest.fixture
    def view(self, played: AttackedToy) -> View:
        """The server's view of the attacked round."""
        return played.view

    @pytest.fixture
    def crafted(self, played: AttackedToy) -> Crafted:
        """The message sent instead of the honest model."""
        return played.crafted

    def test_what_it_sends_can_be_trained(self, crafted: Crafted) -> None:
        """Every broadcast has an architecture that can be built, and finite tensors that fit it."""
        for broadcast in (crafted.default, *crafted.addressed.values()):
            model = models.build(broadcast.architecture)
            models.load(model, broadcast.tensors, partial=True)
            assert all(bool(t.isfinite().all()) for t in broadcast.tensors.values())

    def test_it_changes_only_what_it_declares(
        self, attack: ActiveAttack, crafted: Crafted, played: AttackedToy
    ) -> None:
        """Changed architectures and addressed broadcasts are declared in ``needs.changes``."""
        agreed = played.toy.setting.terms.architecture
        sent = (crafted.default, *crafted.addressed.values())
        changes = attack.needs.changes  # type: ignore[attr-defined]  # an active attack is an attack
        assert changes
        assert "architecture" in changes or all(b.architecture == agreed for b in sent)
        assert "addressing" in changes or not crafted.addressed

    def test_its_memory_is_finite_tensors(self, crafted: Crafted) -> None:
        """The memory for the read-out consists of finite tensors, so that it can be replayed elsewhere."""
        assert all(bool(t.isfinite().all()) for t in crafted.memory.values() if t.is_floating_point())

    def test_same_rng_same_craft(self, attack: ActiveAttack, settings: Mapping[str, Any]) -> None:
        """The same random stream gives the same model."""
        check_repeatable(lambda: play_attacked(attack, **settings).crafted)


def tensors_of(value: Any, path: str = "") -> dict[str, Tensor]:
    """Every tensor inside nested dataclasses, mappings and sequences, by its path.

    Examples:
        >>> list(tensors_of({"a": [torch.zeros(1), {"b": torch.ones(2)}]}))
        ['/a/0', '/a/1/b']
    """
    if isinstance(value, Tensor):
        return {path: value}
    if isinstance(value, Mapping):
        inside = {f"{path}/{k}": v for k, v in value.items()}
    elif isinstance(value, list | tuple):
        inside = {f"{path}/{i}": v for i, v in enumerate(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        inside = {f"{path}.{f.name}": getattr(value, f.name) for f in fields(value)}
    else:
        return {}
    return {key: t for place, v in inside.items() for key, t in tensors_of(v, place).items()}


def check_repeatable(compute: Callable[[], Any]) -> None:
    """Check that ``compute`` is deterministic and neither uses nor changes the global generator.

    Examples:
        >>> check_repeatable(lambda: torch.rand(3, generator=Rng.root(0).torch()))
        >>> check_repeatable(lambda: torch.rand(3))
        Traceback (most recent call last):
        ...
        AssertionError
    """
    before = torch.get_rng_state()
    one = tensors_of(compute())
    assert torch.equal(before, torch.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        two = tensors_of(compute())
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
