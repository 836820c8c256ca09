"""The earlier place of :class:`~glasshouse.testing.attack_contract.ActiveAttackContract`, for one release."""

from glasshouse.testing.attack_contract import ActiveAttackContract

__all__ = ["ActiveAttackContract"]
