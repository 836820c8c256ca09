"""Ground truth of a captured federation: a test client records what it trains on, in its own folder.

An audit is scored against the ground truth, which only the client knows. A client that is run for the audit,
on the auditor's data, records its batches in training order, and sends none of them: :func:`truth_mod`
observes the inputs of the network and of the loss, in training mode, and the rows that XGBoost boosts on. A
training loop whose loss is neither cross-entropy nor one of torch's modules, and an answer to a query,
reports its batches by calling ``used``. ``glasshouse collect`` fetches the folders.
"""

from pathlib import Path

from flwr.app import Context, Message

from glasshouse.errors import BadValue
from glasshouse.integrations.boosting import observed_boosting
from glasshouse.integrations.flower.records import (
    Mod,
    Next,
    arrays_of,
    is_secure,
    round_of,
    stage_of,
    tensors_of,
)
from glasshouse.integrations.layout import Layout
from glasshouse.integrations.steps import Steps, observed
from glasshouse.truth.recorded import Recorded, write_recorded


def truth_mod(folder: str | Path, *, count: bool = False, layout: Layout | None = None) -> Mod:
    """A client mod that records the batches of every round of training below ``folder``.

    It goes last in ``mods``, so that it is the innermost. Images are recorded as they enter the network:
    augmented and normalised.

    Args:
        folder: of the clients on this machine; each node has its own subfolder.
        count: the server's messages state no round; the first recorded one is about the client's first
            answer that the capture holds, and so on.
        layout: as given to ``capture``.
    """

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        stage = stage_of(message)
        carries = message.has_content() and bool(message.content.array_records)
        # Without a network the model travels as bytes, or nothing does; keys of a secure sum are no training.
        trains = stage == "train" and message.has_content() and (carries or not is_secure(message))
        if not trains and stage != "query":
            return call_next(message, context)
        place = Path(folder).expanduser()
        counted = count or not (trains and carries)
        number = _answers(place / str(context.node_id)) if counted else round_of(message)
        steps = Steps()
        with observed(steps), observed_boosting():
            answer = call_next(message, context)
        if not steps.batches:
            return answer
        if number is None:
            raise BadValue(
                "truth_mod",
                needs="the number of the round in the message: 'server-round' in its config",
                got="none",
                fix="use a strategy of Flower, set it where the server makes its messages, or say count=True",
            )
        arrays = arrays_of(answer.content) if answer.has_content() else None
        sent = {} if arrays is None or counted else tensors_of(arrays)
        recorded = Recorded(
            node=str(context.node_id),
            round=number,
            steps=steps.batches,
            pixels=steps.pixels,
            sent=sent if layout is None or not sent else layout(sent),
            stepping=steps.read,
            counted=counted,
        )
        write_recorded(recorded, place)
        return answer

    return mod


def _answers(folder: Path) -> int:
    """How many answers of this node were recorded: the number of the next one."""
    return sum(1 for _ in folder.glob("*.safetensors"))
