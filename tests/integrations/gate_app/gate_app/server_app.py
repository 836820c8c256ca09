"""The server: names deeds one by one, and writes down all that arrived."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

from gate_app.deeds import start

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    nodes = []
    while len(nodes) < int(config["nodes"]):
        nodes = sorted(grid.get_node_ids())
        time.sleep(0.2)
    model = start(int(config["width"]))
    lines, arrived = [], {}
    for turn, deed in enumerate(str(config["deeds"]).split()):
        content = RecordDict(
            {
                "arrays": ArrayRecord({n: Array(a) for n, a in model.items()}),
                "task": ConfigRecord({"deed": deed, "turn": turn}),
            }
        )
        messages = [Message(content, node, "train", group_id=str(turn)) for node in nodes]
        begin = time.time()
        replies = list(grid.send_and_receive(messages, timeout=float(config["timeout"])))
        for answer in replies:
            line = {"turn": turn, "deed": deed, "begin": begin, "seconds": time.time() - begin}
            line["node"] = str(answer.metadata.src_node_id)
            if answer.has_error():
                line["error"] = answer.error.reason
            else:
                records = answer.content
                line["records"] = list(records)
                line["metrics"] = {k: v for r in records.metric_records.values() for k, v in r.items()}
                for record in records.array_records.values():
                    line["tensors"] = list(record)
                    for name, array in record.items():
                        arrived[f"{turn}/{answer.metadata.src_node_id}/{name}"] = array.numpy()
            lines.append(line)
        if not replies:
            lines.append({"turn": turn, "deed": deed, "begin": begin, "silent": True})
        folder = Path(str(config["out"]))
        (folder / "arrived.json").write_text(json.dumps(lines))
    np.savez(folder / "arrived.npz", **arrived)
