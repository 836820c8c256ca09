"""Flower apps that send no network: trees, follow-up times, statistics, in the shapes of Flower's own.

Written for these tests, on tables that anybody has: breast cancer (scikit-learn) and a made-up cohort.
"""

import json
from pathlib import Path

import numpy as np
import torch
import xgboost
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic
from sklearn.datasets import load_breast_cancer

from glasshouse.data.tables.cohort import TABLE as COHORT
from glasshouse.data.tables.cohort import cohort
from glasshouse.integrations.flower import used
from glasshouse.modalities.row import Column, Row

ROWS = 60
PARAMS = {"params.objective": "binary:logistic", "params.eta": 0.1, "params.max-depth": 3, "local-epochs": 1}
"""A run configuration as Flower keeps it: tables are dotted, and names have hyphens."""
BINS = tuple(np.linspace(0, 1095, 6))


def cancer():
    """Rows (569, 8) float32 of breast cancer and their labels: the first eight measurements."""
    data = load_breast_cancer()
    return data.data[:, :8].astype(np.float32), data.target


def cancer_table():
    """Its columns, with public ranges."""
    highs = (40, 50, 200, 3000, 1, 1, 1, 1)
    names = load_breast_cancer().feature_names[:8]
    return Row(
        columns=tuple(
            Column(name=str(n), kind="continuous", high=h) for n, h in zip(names, highs, strict=True)
        )
    )


def write_cancer(folder):
    """The public rows as a CSV with its schema beside it; those of clients are left out."""
    rows, labels = cancer()
    names = [column.name for column in cancer_table().columns]
    lines = [",".join([*names, "benign"])]
    for row, label in zip(rows[240:], labels[240:], strict=True):
        lines.append(",".join([*(repr(float(v)) for v in row), ("no", "yes")[label]]))
    (folder / "cancer.csv").write_text("\n".join(lines))
    text = ["confirmed = true", 'file = "cancer.csv"']
    for column in cancer_table().columns:
        text += ["[[column]]", f'name = "{column.name}"', 'kind = "continuous"', f"high = {column.high}"]
    text += ["[[column]]", 'name = "benign"', 'kind = "binary"', 'role = "target"', 'levels = ["no", "yes"]']
    (folder / "cancer.schema.toml").write_text("\n".join(text))
    return folder / "cancer.schema.toml"


def boosting_client(mods=(), cyclic=False):
    """Boosts on its own rows; sends the new trees (bagging) or all of them (cyclic)."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def _train(message, context):
        rows, labels = cancer()
        own = slice(
            ROWS * context.node_config["partition-id"], ROWS * (1 + context.node_config["partition-id"])
        )
        data = xgboost.DMatrix(rows[own], labels[own])
        settings = {"objective": "binary:logistic", "eta": 0.1, "max_depth": 3, "nthread": 1}
        received = message.content["arrays"]["0"].numpy().tobytes()
        if received:
            booster = xgboost.Booster(settings)
            booster.load_model(bytearray(received))
            booster.update(data, booster.num_boosted_rounds())
            booster = booster if cyclic else booster[booster.num_boosted_rounds() - 1 :]
        else:
            booster = xgboost.train(settings, data, num_boost_round=1)
        saved = np.frombuffer(booster.save_raw("json"), dtype=np.uint8)
        content = {"arrays": ArrayRecord([saved]), "metrics": MetricRecord({"num-examples": ROWS})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def _evaluate(message, context):
        return Message(RecordDict({"m": MetricRecord({"auc": 0.875, "num-examples": 12})}), reply_to=message)

    return app


def boosting_server(rounds=2, cyclic=False):
    """Flower's own strategies for trees; there is no model before the first round."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        strategy = FedXgbCyclic() if cyclic else FedXgbBagging()
        nothing = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
        strategy.start(grid=grid, initial_arrays=nothing, num_rounds=rounds)

    return app


def patients(number, size=ROWS):
    """Rows of a client of the cohort, as values by column, and outcomes."""
    part = cohort("").splits["test"]
    index = slice(size * number, size * (number + 1))
    return COHORT.decode(part.stored[index]).numpy(), part.labels[index].numpy()


def follow_up_client(mods=(), columns=5, coarse=1):
    """Answers a query by times and outcomes of its patients, one by one."""
    app = ClientApp(mods=list(mods))

    @app.query()
    def _query(message, context):
        values, died = patients(context.node_config["partition-id"])
        values = values[:, :columns]
        values[:, 0] = np.ceil(values[:, 0] / coarse) * coarse
        used(values, died)
        survival = ArrayRecord({"T": Array(values[:, 0]), "E": Array(died)})
        metrics = MetricRecord({"num-examples": len(died)})
        return Message(RecordDict({"survival-data": survival, "metrics": metrics}), reply_to=message)

    return app


def counting_client(mods=(), joins=0):
    """Answers a query by a histogram, sums and counts; ``joins``: people who come before the next one."""
    app = ClientApp(mods=list(mods))

    @app.query()
    def _query(message, context):
        asked = int(context.state["turns"]["n"]) if "turns" in context.state else 0
        context.state["turns"] = ConfigRecord({"n": asked + 1})
        values, died = patients(context.node_config["partition-id"])
        values, died = values[: ROWS - 4 + joins * asked], died[: ROWS - 4 + joins * asked]
        used(values, died)
        time, age = values[:, 0], values[:, 1]
        metrics = {"time": np.histogram(time, BINS)[0].tolist(), "time_avg": float(time.mean() * len(time))}
        metrics |= {"time_count": len(time), "age_std_sum": float(age.sum()), "age_std_count": len(age)}
        metrics |= {"age_std_sum_sqd": float((age**2).sum())}
        return Message(RecordDict({"query_results": MetricRecord(metrics)}), reply_to=message)

    return app


def asking_server(rounds=1, group=True):
    """Asks all nodes; the messages count rounds from 0 as their group, or do not count."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        for number in range(rounds):
            messages = [
                Message(
                    content=RecordDict(),
                    message_type=MessageType.QUERY,
                    dst_node_id=node,
                    **({"group_id": str(number)} if group else {}),
                )
                for node in grid.get_node_ids()
            ]
            grid.send_and_receive(messages)

    return app


def counting_from_zero(rounds):
    """A loop of its own that numbers its messages' groups from 0 and sends no model."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        for number in range(rounds):
            nothing = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
            grid.send_and_receive(
                Message(
                    content=RecordDict({"arrays": nothing}),
                    message_type=MessageType.TRAIN,
                    dst_node_id=node,
                    group_id=str(number),
                )
                for node in list(grid.get_node_ids())
            )

    return app


GOLD = json.loads((Path(__file__).parents[1] / "golden" / "catboost_categories.json").read_text())
"""Models of CatBoost and the rows behind them."""


def ward_table():
    """The columns of these rows."""
    return Row(
        columns=(
            Column(name="age", kind="integer", low=0, high=100),
            Column(name="ward", kind="categorical", levels=tuple(GOLD["levels"]["ward"])),
            Column(name="sex", kind="binary", levels=tuple(GOLD["levels"]["sex"])),
        )
    )


def write_wards(folder, count=200):
    """Public rows of such a table, drawn at random, as a CSV with its schema beside it."""
    draws, lines = np.random.default_rng(0), ["age,ward,sex,died"]
    for _ in range(count):
        picked = [draws.choice(GOLD["levels"][name]) for name in ("ward", "sex")]
        lines.append(",".join([str(draws.integers(18, 90)), *picked, draws.choice(["no", "yes"])]))
    (folder / "wards.csv").write_text("\n".join(lines))
    text = ["confirmed = true", 'file = "wards.csv"']
    text += ["[[column]]", 'name = "age"', 'kind = "integer"', "high = 100"]
    for name, kind in (("ward", "categorical"), ("sex", "binary")):
        text += ["[[column]]", f'name = "{name}"', f'kind = "{kind}"']
        text.append(f"levels = {json.dumps(GOLD['levels'][name])}")
    text += ["[[column]]", 'name = "died"', 'kind = "binary"', 'role = "target"', 'levels = ["no", "yes"]']
    (folder / "wards.schema.toml").write_text("\n".join(text))
    return folder / "wards.schema.toml"


def category_client(mods=(), broken=()):
    """Sends a model that CatBoost grew on its rows, as bytes in a configuration, and no number of rows."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def _train(message, context):
        number = context.node_config["partition-id"]
        used(np.array(GOLD["rows"], dtype=np.float64), np.array(GOLD["labels"]))
        sent = b"not a model" if number in broken else json.dumps(GOLD["models"][number % 2]).encode()
        return Message(
            RecordDict({"model": ConfigRecord({"AUC": 0.5, "model_dict": sent})}), reply_to=message
        )

    return app


def configured_server(rounds=1):
    """A loop of its own: the model travels as bytes in a configuration; groups count rounds from 0."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        for number in range(rounds):
            grid.send_and_receive(
                Message(
                    content=RecordDict({"gmodel": ConfigRecord({"model": b""})}),
                    message_type=MessageType.TRAIN,
                    dst_node_id=node,
                    group_id=str(number),
                )
                for node in list(grid.get_node_ids())
            )

    return app


PEOPLE, ACQUAINTED = 80, 30
"""Of a vertical federation: all of them, and those whom both parties know."""


def halves(number):
    """The columns of one of two parties, of the same people, and everybody's label."""
    values, died = patients(1, PEOPLE)
    return values[:, 1:3] if number == 0 else values[:, 3:], died


def half_table(number):
    """The columns of a party."""
    return Row(columns=COHORT.columns[1:3] if number == 0 else COHORT.columns[3:])


def write_columns(folder, places):
    """Public rows of some columns of the cohort, as a CSV with its schema beside it."""
    part = cohort("").splits["train"]
    values, columns = COHORT.decode(part.stored[:400]), COHORT.columns[places]
    lines = [",".join([*(column.name for column in columns), "died"])]
    for row, died in zip(values[:, places].tolist(), part.labels[:400].tolist(), strict=True):
        cells = [column.write(value) for column, value in zip(columns, row, strict=True)]
        lines.append(",".join([*cells, ("no", "yes")[died]]))
    (folder / "columns.csv").write_text("\n".join(lines))
    text = ["confirmed = true", 'file = "columns.csv"']
    for column in columns:
        text += ["[[column]]", f'name = "{column.name}"', f'kind = "{column.kind}"']
        text += [f"low = {column.low}", f"high = {column.high}"] if column.numeric else []
        text += [] if column.numeric else [f"levels = {json.dumps(column.levels)}"]
    text += ["[[column]]", 'name = "died"', 'kind = "binary"', 'role = "target"', 'levels = ["no", "yes"]']
    (folder / "columns.schema.toml").write_text("\n".join(text))
    return folder / "columns.schema.toml"


def embedding_client(mods=(), tells=True):
    """A party of columns: embeds them in 32 numbers, and trains on the gradients that come back."""
    app = ClientApp(mods=list(mods))

    def network(number):
        with torch.random.fork_rng():
            torch.manual_seed(number)
            width = halves(number)[0].shape[1]
            return torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))

    def embed(number):
        values = torch.tensor(halves(number)[0]).float()
        return network(number)((values - values.mean(0)) / values.std(0))

    @app.query("embed")
    def _embed(message, context):
        number = context.node_config["partition-id"]
        values, died = halves(number)
        if tells and number == 0:
            used(values[ACQUAINTED:], died[ACQUAINTED:])
        sent = {"embedding": Array(embed(number).detach().numpy())}
        content = {"arrays": ArrayRecord(sent), "config": ConfigRecord({"pos": number})}
        return Message(RecordDict(content), reply_to=message)

    @app.train("step")
    def _step(message, context):
        number = context.node_config["partition-id"]
        died = halves(number)[1]
        if not tells:
            used(halves(0)[0][ACQUAINTED:, :1], died[ACQUAINTED:])
        embed(number).backward(torch.from_numpy(message.content["g"]["gradients"].numpy()))
        return Message(RecordDict(), reply_to=message)

    return app


def head_server(rounds=2):
    """The party of the labels: a head on both embeddings; it pushes gradients and waits for nothing."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        labels = torch.tensor(halves(0)[1]).float()[:, None]
        torch.manual_seed(0)
        head = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        for _ in range(rounds):
            replies = grid.send_and_receive(
                Message(content=RecordDict(), message_type="query.embed", dst_node_id=node)
                for node in sorted(grid.get_node_ids())
            )
            parties = sorted(replies, key=lambda reply: reply.content["config"]["pos"])
            sent = [torch.from_numpy(r.content["arrays"]["embedding"].numpy()) for r in parties]
            embeddings = torch.cat(sent, 1).requires_grad_()
            torch.nn.functional.binary_cross_entropy_with_logits(head(embeddings), labels).backward()
            grid.push_messages(
                Message(
                    content=RecordDict({"g": ArrayRecord({"gradients": Array(part.numpy())})}),
                    message_type="train.step",
                    dst_node_id=reply.metadata.src_node_id,
                )
                for reply, part in zip(parties, embeddings.grad.split(32, 1), strict=True)
            )

    return app
