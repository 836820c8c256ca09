"""Documents and tables that nobody should send: each is refused in one line, within seconds, never run."""

import json
import pickle
import time

import numpy as np
import pytest
import xgboost

from glasshouse.cli import main
from glasshouse.data.tables.table import table
from glasshouse.errors import GlasshouseError
from glasshouse.formats.base import read_document

SECONDS = 10


class Runs:
    """Unpickling it would be noticed."""

    def __reduce__(self):
        return (print, ("this ran",))


def xgb():
    rows = np.random.default_rng(0).random((60, 3)).astype(np.float32)
    labels = (rows.sum(1) > 1.5).astype(int)
    how = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
    return json.loads(xgboost.train(how, xgboost.DMatrix(rows, labels), 2).save_raw("json"))


def changed(change):
    """A model of XGBoost with one change to its first tree, or to the whole."""
    raw = xgb()
    change(raw["learner"], raw["learner"]["gradient_booster"]["model"]["trees"][0])
    return json.dumps(raw).encode()


def put(key, place, value):
    def change(_, tree):
        tree[key][place] = value

    return changed(change)


def booster(name):
    return changed(lambda learner, _: learner["gradient_booster"].update(name=name))


def objective(name):
    return changed(lambda learner, _: learner["objective"].update(name=name))


def statistics(*numbers):
    return json.dumps({"format": "statistics", "numbers": list(numbers)}).encode()


def count(**more):
    return {"name": "count", "value": 10, "digits": None, **more}


def survival(**more):
    stated = {"format": "survival", "times": [1, 2], "patients": 4, "events": [1, 1], "censored": [1, 1]}
    return json.dumps({**stated, **more}).encode()


def glm(**more):
    stated = {"format": "glm", "theta": [0, 0], "gradient": [1, 1], "hessian": [[1, 0], [0, 1]]}
    return json.dumps({**stated, **more}).encode()


def histograms(**more):
    node = {"first": [0], "last": [1], "gradient": [[0.1, 0.2]], "hessian": [[1.0, 1.0]]}
    stated = {
        "format": "histograms",
        "tree": 0,
        "base": 0.5,
        "cuts": [[0.5]],
        "nodes": [node | more.pop("node", {})],
    }
    return json.dumps({**stated, **more}).encode()


COUNT = b'{"format": "statistics", "numbers": [{"name": "count", "digits": null, "value": '
DOCUMENTS = {
    "empty": b"",
    "a pickle": pickle.dumps(Runs()),
    "a joblib archive": b"\x1f\x8b\x08\x00" + bytes(40),
    "a zip archive": b"PK\x03\x04" + bytes(40),
    "a binary of no known magic": b"binf" + bytes(40),
    "random bytes": bytes(np.random.default_rng(0).integers(0, 256, 2000, dtype=np.uint8)),
    "text": b"hello",
    "JSON of another kind": b'{"hello": 1}',
    "half a document": json.dumps(xgb()).encode()[:900],
    "no UTF-8": b'{"format": "statistics", "numbers": ["\xff\xfe"]}',
    "nested too deeply": b'{"format": "statistics", "numbers": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "nested beyond recursion": b'{"format": "statistics", "numbers": ' + b"[" * 200_000,
    "the same key twice": b'{"format": "statistics", "numbers": [], "numbers": []}',
    "numbers that are not finite": COUNT + b"NaN}]}",
    "a number of a million digits": COUNT + b"9" * 1_000_000 + b"}]}",
    "an infinite weight": put("base_weights", 0, 1e999),
    "a threshold of words": put("split_conditions", 0, "x"),
    "a threshold of an unknown feature": put("split_indices", 0, 10**9),
    "a negative feature": put("split_indices", 0, -3),
    "a child out of range": put("left_children", 0, 10**6),
    "a cycle": put("left_children", 0, 0),
    "an orphan": put("right_children", 0, 1),
    "lists of different lengths": changed(lambda _, tree: tree["split_conditions"].append(0.5)),
    "no nodes": changed(lambda _, tree: [tree[k].clear() for k in tree if isinstance(tree[k], list)]),
    "trees that are no list": changed(
        lambda learner, _: learner["gradient_booster"]["model"].update(trees="many")
    ),
    "DART": booster("dart"),
    "a linear booster": booster("gblinear"),
    "ranking": objective("rank:pairwise"),
    "survival trees": objective("survival:cox"),
    "several classes": objective("multi:softprob"),
    "categorical splits": changed(lambda _, tree: tree["split_type"].__setitem__(0, 1)),
    "LightGBM cut short": b"tree\nversion=v4\nnum_class=1\n",
    "statistics of nothing": statistics(),
    "an unknown statistic": statistics(count(name="mode")),
    "unknown precision": statistics({"name": "count", "value": 1}),
    "a negative count": statistics(count(value=-1)),
    "a bin of less than nobody": statistics(count(name="bin", value=-2, low=0, high=1)),
    "digits of a hundred": statistics(count(digits=100)),
    "a value of words": statistics(count(value="ten")),
    "a site in fractions": statistics(count(site=0.5)),
    "a list for a number": statistics([1, 2]),
    "unsorted times": survival(times=[2, 1]),
    "equal times": survival(times=[1, 1]),
    "more deaths than patients": survival(events=[9, 9]),
    "negative deaths": survival(events=[-1, 1]),
    "deaths in fractions": survival(events=[0.5, 1]),
    "nobody": survival(patients=0),
    "a billion patients": survival(patients=10**9),
    "a rising curve": survival(curve=[0.5, 0.9]),
    "a curve above one": survival(curve=[1.5, 0.9]),
    "a raw event of two": survival(raw=[2, 1]),
    "lists of two lengths": survival(events=[1]),
    "a hessian that is not square": glm(hessian=[[1, 0]]),
    "a hessian that is not symmetric": glm(hessian=[[1, 5], [0, 1]]),
    "a gradient of another length": glm(gradient=[1]),
    "coefficients without end": glm(theta=[0] * 5000),
    "histograms with a base of 1": histograms(base=1),
    "cuts that fall": histograms(cuts=[[0.5, 0.1]]),
    "a box of bins that are not there": histograms(node={"last": [7]}),
    "negative second derivatives": histograms(node={"hessian": [[-1.0, 1.0]]}),
    "a column too many": histograms(node={"gradient": [[0.1, 0.2], [0.3]]}),
}  # fmt: skip
SCHEMA = """
confirmed = true
[[column]]
name = "age"
kind = "integer"
low = 0
high = 100
[[column]]
name = "smokes"
kind = "categorical"
levels = ["no", "yes", "once"]
[[column]]
name = "ill"
kind = "binary"
role = "target"
levels = ["no", "yes"]
"""


def rows(*lines, head="age,smokes,ill"):
    good = [f"{20 + i},no,{('no', 'yes')[i % 2]}" for i in range(8)]
    return "\n".join([head, *good, *lines]) + "\n"


TABLES = {
    "a level that is not in the schema": (rows("30,often,no"), SCHEMA),
    "words in a number": (rows("old,no,no"), SCHEMA),
    "a value out of range": (rows("130,no,no"), SCHEMA),
    "a missing value": (rows(",no,no"), SCHEMA),
    "a fraction in whole numbers": (rows("30.5,no,no"), SCHEMA),
    "a decimal comma": (rows('"30,5",no,no'), SCHEMA),
    "a row too long": (rows("30,no,no,yes,no"), SCHEMA),
    "a column twice": (rows(head="age,age,ill"), SCHEMA),
    "a column that the schema lacks": (rows(head="age,smokes,sick"), SCHEMA),
    "an empty table": ("age,smokes,ill\n", SCHEMA),
    "nothing at all": ("", SCHEMA),
    "bytes of no text": ("\x00\x01\x02", SCHEMA),
    "a range upside down": (rows(), SCHEMA.replace("low = 0", "low = 200")),
    "levels twice": (rows(), SCHEMA.replace('"once"', '"no"')),
    "an unknown kind": (rows(), SCHEMA.replace("integer", "text")),
    "no target": (rows(), SCHEMA.replace('role = "target"\n', "")),
    "a schema that is no TOML": (rows(), "]["),
}


def test_there_are_sixty_and_more():
    assert len(DOCUMENTS) + len(TABLES) >= 60


def refused(error):
    """One line each for subject, need, finding and way out; short enough to be read."""
    lines = str(error).splitlines()
    assert len(lines) == 4
    assert all(len(line) < 400 for line in lines)
    assert error.fix


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_hostile_document_is_refused_in_one_line(name, capsys):
    started = time.process_time()
    with pytest.raises(GlasshouseError) as caught:
        read_document(DOCUMENTS[name])
    refused(caught.value)
    assert time.process_time() - started < SECONDS
    assert "this ran" not in capsys.readouterr().out


def read(folder, text, schema):
    (folder / "people.csv").write_text(text)
    (folder / "people.schema.toml").write_text(schema)
    return table(str(folder / "people.csv"))


def test_the_table_without_the_flaw_is_read(tmp_path):
    pytest.importorskip("pandas", reason="the extra 'tables'")
    assert len(read(tmp_path, rows(), SCHEMA).splits["train"]) >= 6


@pytest.mark.parametrize("name", TABLES)
def test_a_hostile_table_is_refused_in_one_line(name, tmp_path):
    pytest.importorskip("pandas", reason="the extra 'tables'")
    started = time.process_time()
    with pytest.raises(GlasshouseError) as caught:
        read(tmp_path, *TABLES[name])
    refused(caught.value)
    assert time.process_time() - started < SECONDS


@pytest.mark.parametrize(
    "name", ["nested beyond recursion", "a cycle", "JSON of another kind", "half a document"]
)
def test_the_command_line_says_which_file(name, tmp_path, capsys):
    (tmp_path / "sent.json").write_bytes(DOCUMENTS[name])
    with pytest.raises(SystemExit) as stop:
        main(["guard", str(tmp_path / "sent.json")])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "sent.json" in said
    assert "Traceback" not in said
