"""Contract tests for attacks by an active server, in addition to those for all attacks.

Subclass as ``TestMyAttack`` and provide ``name``, ``attack`` and ``settings``; the view comes from a toy
federation that is run under the attack.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from glasshouse.attacks.base import ActiveAttack
from glasshouse.models import build as models
from glasshouse.testing.attack_contract import AttackContract, check_repeatable
from glasshouse.testing.toys import AttackedToy, play_attacked
from glasshouse.transcript.view import View
from glasshouse.wire import Crafted

__all__ = ["ActiveAttackContract"]


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
