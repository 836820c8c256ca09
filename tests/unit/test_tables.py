"""Tables with their schemas, arrays and volumes: what is read, and what is refused without naming a value."""

import json

import numpy as np
import pytest
import torch

from glasshouse.cli import main
from glasshouse.data.sources import load
from glasshouse.data.tables import adult
from glasshouse.data.tables.schema import read_schema
from glasshouse.data.tables.table import read_frame
from glasshouse.errors import BadFile, BadValue
from glasshouse.modalities.array import Array
from glasshouse.modalities.row import Column

pd = pytest.importorskip("pandas")

SCHEMA = """
confirmed = true
[[column]]
name = "age"
kind = "integer"
low = 0
high = 100
[[column]]
name = "ward"
kind = "categorical"
levels = ["north", "south", "west"]
missing = true
[[column]]
name = "ill"
kind = "binary"
role = "target"
levels = ["no", "yes"]
[[column]]
name = "person"
kind = "integer"
low = 0
high = 9
role = "group"
"""
ROWS = "age,ward,ill,person\n" + "".join(
    f"{20 + i}, {('north', 'south', 'west', '?')[i % 4]},{('no', 'yes')[i % 2]},{i // 2}\n" for i in range(8)
)


def written(tmp_path, rows=ROWS, schema=SCHEMA):
    (tmp_path / "people.csv").write_text(rows)
    (tmp_path / "people.schema.toml").write_text(schema)
    return f"table:{tmp_path / 'people.csv'}"


def test_a_table_is_read_with_its_schema(tmp_path):
    source = load(written(tmp_path))
    assert (source.inputs.shape, source.class_names, source.task.name) == (
        (5,),
        ("no", "yes"),
        "classification",
    )
    train, test = source.splits["train"], source.splits["test"]
    assert (len(train), len(test)) == (6, 2)
    assert source.inputs.decode(train.stored)[:3].tolist() == [[20, 0], [21, 1], [22, 2]]
    assert source.inputs.display(test.stored[0]).text == "age: 23; ward: missing"
    assert train.groups.tolist() == [0, 0, 1, 2, 2, 3]
    assert not source.public


def test_parquet_gives_the_same_rows(tmp_path):
    pytest.importorskip("pyarrow")
    name = written(tmp_path)
    frame = pd.read_csv(tmp_path / "people.csv", skipinitialspace=True)
    frame.to_parquet(tmp_path / "other.parquet")
    (tmp_path / "named.toml").write_text('file = "other.parquet"\n' + SCHEMA)
    one, other = load(name), load(f"table:{tmp_path / 'named.toml'}")
    assert torch.equal(one.splits["train"].stored, other.splits["train"].stored)


@pytest.mark.parametrize(
    ("rows", "schema", "words"),
    [
        (ROWS.replace("25,", "125,"), SCHEMA, "from 0 to 100"),
        (ROWS.replace("25,", "25.5,"), SCHEMA, "integer"),
        (ROWS.replace("25,", "secret,"), SCHEMA, "1 other values, the first in row 6"),
        (ROWS.replace("west", "secret"), SCHEMA, "one of its 3 levels"),
        (ROWS, SCHEMA.replace("missing = true", ""), "not missing"),
        (ROWS, SCHEMA.replace("confirmed = true", "confirmed = false"), "confirmed = true"),
        (ROWS, SCHEMA.replace('name = "ward"', 'name = "room"'), "no column 'room'"),
        (ROWS, SCHEMA.replace('role = "target"', ""), "one column of role target"),
        (ROWS, SCHEMA + "colour = 3\n", "Unexpected keyword argument"),
        (ROWS, SCHEMA.replace('"south", ', '"north", '), "distinct levels"),
        (ROWS, "confirmed = ", "TOML"),
        ("age,ward,ill,person\n", SCHEMA, "at least one row"),
    ],
)
def test_what_a_schema_does_not_allow_is_refused_without_the_value(tmp_path, rows, schema, words):
    with pytest.raises(BadFile) as caught:
        load(written(tmp_path, rows, schema))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_table_without_a_schema_says_how_to_get_one(tmp_path):
    (tmp_path / "people.csv").write_text(ROWS)
    with pytest.raises(BadFile, match="glasshouse schema FILE"):
        load(f"table:{tmp_path / 'people.csv'}")


def test_a_drafted_schema_reads_the_table_once_it_is_confirmed(tmp_path, capsys):
    written(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["schema", str(tmp_path / "people.csv"), "--target", "ill"])
    assert stop.value.code == 0
    draft = capsys.readouterr().out
    assert "confirmed = false" in draft
    (tmp_path / "people.schema.toml").write_text(draft.replace("confirmed = false", "confirmed = true"))
    source = load(f"table:{tmp_path / 'people.csv'}")
    assert [column.kind for column in source.inputs.columns] == ["integer", "categorical", "integer"]
    assert source.class_names == ("no", "yes")


def drafted_by(tmp_path, capsys, text, *options):
    (tmp_path / "any.csv").write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["schema", str(tmp_path / "any.csv"), *options])
    said = capsys.readouterr()
    return stop.value.code, said.out + said.err


def test_a_draft_leaves_out_what_no_network_should_see(tmp_path, capsys):
    """Names, numbers of records and empty columns; their values do not stand in what becomes public."""
    rows = [f"{10**15 + 10_007 * i},,person {i},{i % 3},{i % 2}" for i in range(1000)]
    text = "\n".join(["number,notes,name,stage,ill", *rows]) + "\n"
    code, words = drafted_by(tmp_path, capsys, text)
    assert code == 0
    for column in ("number", "notes", "name"):
        assert f'name = "{column}"' in words
    assert words.count('role = "ignored"') == 3 + 1  # and once in the comment
    assert "person 7" not in words
    assert str(10**15) not in words
    (tmp_path / "any.schema.toml").write_text(words.replace("confirmed = false", "confirmed = true"))
    assert load(f"table:{tmp_path / 'any.csv'}").inputs.shape == (1,)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b,a,y\n1,2,3,0\n4,5,6,1\n", (), "'a' again"),
        ("a,,y\n1,2,0\n4,5,1\n", (), "or none"),
        ("a,b,y\n1,2,0\n4,5,1\n", ("--target", "z"), "a target among a, b, y"),
    ],
)
def test_a_draft_of_columns_that_have_no_name_of_their_own_is_refused(tmp_path, capsys, text, options, words):
    code, said = drafted_by(tmp_path, capsys, text, *options)
    assert code == 2
    assert words in said


def test_whole_numbers_that_float32_does_not_tell_apart_need_a_tolerance():
    """Off by one in ten million they would count as read exactly, and a certificate as true."""
    with pytest.raises(BadValue, match="a tolerance of at least 2"):
        Column(name="number", kind="integer", low=0, high=10**7)
    with pytest.raises(BadValue, match="a tolerance of at least 2048"):
        Column(name="number", kind="integer", low=2.0**63, high=2.0**63 + 2.0**20)
    assert Column(name="number", kind="integer", low=0, high=10**7, tolerance=2).resolution == 2
    assert Column(name="weight", kind="integer", low=12_285, high=1_484_705).resolution < 0.5


def saved(tmp_path, **arrays):
    path = tmp_path / "all.npz"
    np.savez(path, **arrays)
    return f"arrays:{path}"


SERIES = np.random.default_rng(0).uniform(-2, 2, (10, 2, 30)).astype(np.float32)


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (np.arange(10) % 3, "classification"),
        (np.linspace(0, 1, 10), "regression"),
        (np.ones((10, 4), dtype=bool), "multilabel"),
        (np.ones((10, 30), dtype=np.int64) * 2, "segmentation"),
    ],
)
def test_series_suggest_their_task(tmp_path, labels, task):
    source = load(saved(tmp_path, train_inputs=SERIES, train_labels=labels, range=np.array([-2.0, 2.0])))
    assert source.inputs == Array(size=(2, 30), range=(-2.0, 2.0))
    assert source.task.name == task


def test_a_file_may_hold_its_modality(tmp_path):
    described = json.dumps({"name": "array", "fields": {"size": [2, 30], "range": [-2.0, 2.0]}})
    source = load(
        saved(tmp_path, train_inputs=SERIES, train_labels=np.arange(10) % 2, modality=np.array(described))
    )
    assert source.inputs == Array(size=(2, 30), range=(-2.0, 2.0))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "smallest and the largest possible number"),
        ({"range": np.array([0.0, 1.0])}, "numbers in"),
        ({"modality": np.array('{"name": "smell"}')}, "registered name of modalities"),
        ({"modality": np.array('{"name": "array", "fields": {"colour": 1}}')}, "fields among range, size"),
        ({"modality": np.array('{"name": "array", "fields": {"size": ["a"]}}')}, "valid integer"),
        ({"modality": np.array("{")}, "JSON"),
    ],
)
def test_arrays_that_do_not_say_what_they_are_are_refused(tmp_path, arrays, words):
    with pytest.raises(Exception, match="needs") as caught:
        load(saved(tmp_path, train_inputs=SERIES, train_labels=np.arange(10) % 2, **arrays))
    assert words in str(caught.value)


def test_volumes_are_read_in_their_declared_range(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    for split in ("train", "test"):
        for name in ("ill", "well"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(2):
                image = nibabel.Nifti1Image(np.full((4, 5, 6), 10.0 * i, dtype=np.float32), np.eye(4))
                image.header["cal_min"], image.header["cal_max"] = 0.0, 100.0
                nibabel.save(image, folder / f"{i}.nii.gz")
    source = load(f"nifti:{tmp_path}")
    assert source.inputs == Array(size=(1, 4, 5, 6), range=(0.0, 100.0))
    assert source.class_names == ("ill", "well")
    assert [len(part) for part in source.splits.values()] == [4, 4]
    (tmp_path / "train" / "ill" / "2.nii").write_bytes(b"no volume")
    with pytest.raises(BadFile, match="NIfTI volumes"):
        load(f"nifti:{tmp_path}")


def made_up_census(path, count=40):
    """Rows that nobody has: random values of the schema of the census table."""
    schema = read_schema(adult.SCHEMA, subject="test")
    draws = torch.Generator().manual_seed(0)
    rows = schema.features.decode(schema.features.probes(count, draws)).tolist()
    names = [column.name for column in schema.features.columns]
    written = [
        [column.write(value) for column, value in zip(schema.features.columns, row, strict=True)]
        for row in rows
    ]
    lines = [",".join([*names, schema.target])]
    for i, row in enumerate(written):
        texts = ["?" if text == "missing" else text for text in row]
        lines.append(",".join([*texts, schema.target_column.levels[i % 2]]))
    (path / "adult.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_census_is_read_from_the_folder_that_holds_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_DATA", str(tmp_path))
    made_up_census(tmp_path)
    source = load("adult")
    assert source.name == "adult (adult.csv)"
    assert [len(source.splits[name].batch()) for name in ("train", "test")] == [30, 10]
    tolerant = {column.name for column in source.inputs.columns if column.tolerance}
    assert tolerant == {"fnlwgt", "capital-gain", "capital-loss"}


@pytest.mark.parametrize("name", ["adult-mlp", "adult-trees"])
def test_a_preset_of_the_census_without_the_file_says_what_to_get_and_where_to_put_it(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("GLASSHOUSE_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        main(["audit", name])
    words = " ".join(capsys.readouterr().err.split())
    assert "got 1 problem" in words
    assert "one of adult.csv, adult/adult.csv in a folder of GLASSHOUSE_DATA" in words
    assert "get adult.data of https://archive.ics.uci.edu/dataset/2/adult" in words
    made_up_census(tmp_path, 4000)
    with pytest.raises(SystemExit, match="0"):
        main(["check", name])
    assert f"'{name}' is valid" in capsys.readouterr().out


UNREAD = {
    "semicolons.csv": (b"age;ill\n3;no\n4;yes\n", "one column", "sep=';'"),
    "another.csv": ("age,town\n3,K\u00f6ln\n".encode("latin-1"), "another encoding", "encoding=..."),
    "tabs.tsv": (b"age\till\n3\tno\n", "'.tsv'", "to_csv or to_parquet"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_tables_that_were_written_otherwise_say_how_to_write_them(name, tmp_path):
    content, got, fix = UNREAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile) as caught:
        read_frame(tmp_path / name, name=name)
    assert got in caught.value.got
    assert fix in caught.value.fix


def test_columns_of_lists_are_refused_by_name(tmp_path):
    pd.DataFrame({"age": [3, 4], "visits": [[1, 2], [3]]}).to_parquet(tmp_path / "nested.parquet")
    with pytest.raises(BadFile, match="'visits' of lists"):
        read_frame(tmp_path / "nested.parquet", name="nested.parquet")
