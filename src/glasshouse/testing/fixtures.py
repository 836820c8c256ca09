"""Fixtures that a contract leaves to the author of a plug-in."""

from typing import Any

import pytest


def to_provide(kind: Any) -> Any:
    """A fixture to be replaced in the subclass of a contract, by one that returns a ``kind``."""

    @pytest.fixture
    def missing(self: object) -> Any:
        raise NotImplementedError(f"a subclass provides this fixture: {kind}")

    return missing
