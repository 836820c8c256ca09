"""What is written is what is read: any names, types and shapes; any JSON; any damage is an error of ours."""

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse import store
from glasshouse.cache import digest
from glasshouse.errors import BadFile
from glasshouse.rng import Rng

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcé"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.randn(shape, generator=Rng.root(draw(st.integers(0, 9))).torch()) * 3
    return values.to(draw(st.sampled_from(TYPES)))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("ab.é\n", min_size=1, max_size=5), tensors(), max_size=4))
def test_tensors(named):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        store.write_tensors(path, named)
        back = store.read_tensors(path)
    assert back.keys() == named.keys()
    for name, t in named.items():
        assert back[name].dtype == t.dtype
        assert torch.equal(back[name], t)
        assert digest(back[name]) == digest(t)


@settings(max_examples=60, deadline=None)
@given(st.lists(JSON, max_size=4))
def test_lines(rows):
    with tempfile.TemporaryDirectory() as folder:
        whole, single = Path(folder) / "w.jsonl", Path(folder) / "s.jsonl"
        store.write_jsonl(whole, rows)
        store.write_jsonl(single, [])
        for row in rows:
            store.append_jsonl(single, row)
        assert store.read_jsonl(whole) == store.read_jsonl(single) == rows
        store.write_json(whole, rows)
        assert store.read_json(whole) == rows


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_is_an_error_of_ours_or_harmless(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        store.write_tensors(path, {"a": torch.arange(4.0), "b": torch.ones(2, 2)})
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        try:
            store.read_tensors(path)
        except BadFile as error:
            assert str(path) in error.subject  # noqa: PT017  damage to the numbers alone cannot be seen
