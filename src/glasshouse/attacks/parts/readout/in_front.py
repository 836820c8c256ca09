"""Helpers for attacks that put a module in front of the agreed model: architecture, and renamed weights."""

import json
from collections.abc import Mapping

from torch import Tensor

from glasshouse.attacks.parts.readout.frozen import complete_broadcast
from glasshouse.errors import Inapplicable
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Value

PREFIX = "features.imprint"
"""Prefix of the module in the ``state_dict`` of ``glasshouse.models.imprint``."""


def in_front(
    agreed: Architecture, *, name: str, arguments: Mapping[str, Value], subject: str
) -> Architecture:
    """The architecture ``name`` around ``agreed``.

    Raises:
        Inapplicable: the agreed model is not registered (a user's own ``module:factory``).
    """
    if ":" in agreed.name:
        raise Inapplicable(
            subject,
            needs="a registered model to put a module in front of",
            got=f"'{agreed.name}'",
            fix="register it as an entry point of glasshouse.models",
        )
    inner = json.dumps(dict(agreed.arguments), sort_keys=True)
    return Architecture(
        name=name,
        input_shape=agreed.input_shape,
        classes=agreed.classes,
        arguments={"inner": agreed.name, "inner_arguments": inner, **arguments},
    )


def agreed_state(view: View) -> dict[str, Tensor]:
    """The honest model as last broadcast, with the names that its tensors have behind the module."""
    return {
        name.replace("features.", "features.inner.", 1) if name.startswith("features.") else name: t
        for name, t in complete_broadcast(view).items()
    }
