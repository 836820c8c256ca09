"""The server's side of a hostile job: asks for one update a turn, whatever came of the last, and keeps it."""

import json
import pickle
import time
from pathlib import Path

from deeds import start
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller, Task
from nvflare.fuel.utils import fobs


class Turns(Controller):
    """Sends the same model once a turn and writes down what came back.

    Args:
        turns: how often.
        out: folder for ``arrived.jsonl`` and the messages as they came.
        width: of the model.
        patience: seconds of one turn.
    """

    def __init__(self, turns, out, width=64, patience=60):
        super().__init__()
        self.turns, self.out, self.width, self.patience = turns, out, width, patience
        self.begin = 0.0

    def start_controller(self, fl_ctx):
        """Nothing is prepared."""

    def control_flow(self, abort_signal, fl_ctx):
        """The turns, one after the other."""
        for turn in range(self.turns):
            self.begin = time.time()
            data = DXO(DataKind.WEIGHTS, data=start(self.width)).to_shareable()
            data.set_header("current_round", turn)
            data.set_header("num_rounds", self.turns)
            task = Task(name="train", data=data, timeout=self.patience, result_received_cb=self._keep)
            self.broadcast_and_wait(task, fl_ctx, min_responses=1, abort_signal=abort_signal)
            if abort_signal.triggered:
                return

    def _keep(self, client_task, fl_ctx):
        result = client_task.result
        turn = client_task.task.data.get_header("current_round")
        content = {k: v for k, v in result.items() if k != "__headers__"}
        data = fobs.dumps(content)
        (Path(self.out) / f"turn{turn}.fobs").write_bytes(data)
        headers = {k: v for k, v in result["__headers__"].items() if isinstance(v, str | int | float)}
        line = {
            "turn": turn,
            "code": result.get_return_code(ReturnCode.OK),
            "bytes": len(data),
            "begin": self.begin,
        }
        dxo = content.get("DXO")
        if dxo:
            (Path(self.out) / f"turn{turn}.pickle").write_bytes(pickle.dumps(dxo["data"]))
            line |= {"kind": str(dxo["kind"]), "meta": repr(dxo.get("meta"))}
        with (Path(self.out) / "arrived.jsonl").open("a") as file:
            file.write(json.dumps({**line, "headers": headers}) + "\n")

    def stop_controller(self, fl_ctx):
        """Nothing is kept."""

    def process_result_of_unknown_task(self, client, task_name, client_task_id, result, fl_ctx):
        """Late answers are not counted."""
