"""Ground truth of a captured job: a test site records what it trains on, in its own folder.

One line in the training script, after ``flare.init()``. It works for scripts that call ``flare.receive`` and
``flare.send`` themselves, and below Lightning's ``flare.patch``, which calls the same two. Where a site's
training is no script (an ``Executor``), its code opens :func:`recorded` around a round.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from glasshouse.integrations.nvflare.names import FLModel, flare
from glasshouse.integrations.steps import Steps
from glasshouse.integrations.steps import observed as observed_steps
from glasshouse.truth.recorded import Recorded, write_recorded


def truth(folder: str | Path) -> None:
    """Record the batches between every ``flare.receive`` and ``flare.send`` of this process.

    Args:
        folder: of the sites on this machine; each site has its own subfolder.
    """
    api = flare.api.get_context().api
    watcher = _Rounds(Path(folder).expanduser())
    api.receive = watcher.received(api.receive)
    api.send = watcher.sent(api.send)


@contextmanager
def recorded(folder: str | Path, *, site: str, round: int) -> Iterator[dict[str, Tensor]]:
    """Record the batches that are trained on inside; what is put into the result is recorded as sent.

    Args:
        folder: of the sites on this machine.
        site: name of the site, as the server knows it.
        round: from 0.
    """
    steps, sent = Steps(), dict[str, Tensor]()
    with observed_steps(steps):
        yield sent
    _write(Path(folder).expanduser(), site, round, steps, sent)


@final
class _Rounds:
    """Opens an observation when a model was received, and closes it when the answer is sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: tuple[ExitStack, Steps, int] | None = None

    def received(self, receive: Callable[..., FLModel | None]) -> Callable[..., FLModel | None]:
        """``receive``, after which training is observed."""

        def observed(*args: Any, **kwargs: Any) -> FLModel | None:
            model = receive(*args, **kwargs)
            if model is not None and self._open is None and model.current_round is not None:
                stack, steps = ExitStack(), Steps()
                stack.enter_context(observed_steps(steps))
                self._open = stack, steps, int(model.current_round)
            return model

        return observed

    def sent(self, send: Callable[..., None]) -> Callable[..., None]:
        """``send``, before which the observed batches are written."""

        def observed(model: FLModel, *args: Any, **kwargs: Any) -> None:
            if self._open is not None:
                stack, steps, number = self._open
                self._open = None
                stack.close()
                # A change is not what training returned: the terms are then not checked.
                full = str(model.params_type) in ("FULL", "ParamsType.FULL") and model.params
                params = _tensors(model.params) if full else {}
                _write(self._folder, flare.get_site_name(), number, steps, params)
            send(model, *args, **kwargs)

        return observed


def _tensors(params: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).detach().cpu().clone() for name, value in params.items()}


def _write(folder: Path, site: str, number: int, steps: Steps, sent: Mapping[str, Tensor]) -> None:
    if steps.batches:
        record = Recorded(
            node=site,
            round=number,
            steps=steps.batches,
            pixels=steps.pixels,
            sent=sent,
            stepping=steps.read,
        )
        write_recorded(record, folder)
