"""Client apps with guards before training and before sending, by changing one line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from flwr.app import Context, Message
from flwr.client import ClientFnExt
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from torch import nn

from glasshouse.integrations.flower.guard import guard_mod
from glasshouse.integrations.flower.preflight import Data, Mod, preflight_mod
from glasshouse.wire import Architecture

__all__ = ["GuardedClientApp", "guarded"]

_MASKING: Final = (secagg_mod, secaggplus_mod)


@final
class GuardedClientApp(ClientApp):
    """A ``ClientApp`` that guards its node; importing it in place of Flower's is the only change to a file.

    No arguments are needed. The network is the module that contains the received tensors when it is called
    with gradients enabled, and its inputs are the node's examples. Its weights are examined then, before any
    step. Its behaviour is examined as soon as 64 examples are known: before the first step if a batch has as
    many, if an earlier round of this process had, or if ``data`` provides them; else after some steps, and at
    the latest before anything is sent. A refusal stops the training, even if the app catches exceptions.

    What cannot be examined is refused, too: training without a module that contains all received tensors
    (NumPy, other threads, ``module.compile()``); a network of several inputs, or that returns no logits; a
    loss that is neither cross-entropy nor one of torch's modules, unless the loop calls
    :func:`~glasshouse.integrations.flower.used`.

    Args:
        client_fn: as of ``ClientApp``.
        mods: as of ``ClientApp``. The guard goes before all of them; updates are checked right before they
            are masked, so after noise added by later mods, or by mods that one function wraps.
        data: the node's own examples.
        reports: folder of the clients' reports.
        most: maximum number of examples exposed in an update that is sent.
        mitigated: if more are exposed, drop the exposing rows or add noise to them, if that hides all and
            changes at most half of the update; otherwise the update is not sent.
        unchecked: train and send although the model could not be examined; the report says so.
    """

    def __init__(
        self,
        client_fn: ClientFnExt | None = None,
        mods: Sequence[Mod] | None = None,
        *,
        data: Data | None = None,
        reports: str | Path = "~/glasshouse/guard",
        most: int = 0,
        mitigated: bool = True,
        unchecked: bool = False,
    ) -> None:
        first = guard_mod(data=data, reports=reports, unchecked=unchecked)
        second = preflight_mod(
            data=data, reports=reports, most=most, mitigated=mitigated, unchecked=unchecked
        )
        own = list(mods or ())
        masked = 1 + max((place for place, mod in enumerate(own) if mod in _MASKING), default=-1)
        super().__init__(client_fn, [first, *own[:masked], second, *own[masked:]])


def guarded(
    app: ClientApp,
    model: nn.Module | Architecture | None = None,
    *,
    data: Data | None = None,
    reports: str | Path = "guard",
    most: int = 0,
    unchecked: bool = False,
) -> ClientApp:
    """``app`` wrapped in :func:`guard_mod` and :func:`preflight_mod`, which the app cannot change.

    Outside the app an update under SecAgg+ is already masked: its terms are checked, the update is not, and
    the report says so.

    Args:
        app: of the researcher.
        model: the agreed network; None: the one observed in training.
        data: the node's own examples.
        reports: folder of the clients' reports.
        most: as in :func:`preflight_mod`.
        unchecked: as in :func:`guard_mod`.
    """
    mods = (
        guard_mod(model, data=data, reports=reports, unchecked=unchecked),
        preflight_mod(model, data=data, reports=reports, most=most, unchecked=unchecked),
    )
    return _AppInside(app, mods)


@final
class _AppInside(ClientApp):
    """A ``ClientApp`` inside mods that it does not know about."""

    def __init__(self, app: ClientApp, mods: tuple[Mod, Mod]) -> None:
        super().__init__()
        self._app = app
        self._first, self._second = mods

    def __call__(self, message: Message, context: Context) -> Message:
        """Run the app between the mods."""

        def inner(message: Message, context: Context) -> Message:
            return self._second(message, context, self._app)

        return self._first(message, context, inner)
