"""The form in which checkpoints are kept: trees and tensors there and back, and what is refused."""

import json
import math
import re
import struct
from collections import Counter, OrderedDict

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format import strict_json
from lightloop_plugins.checkpoint.format.manifest import read_manifest, write_manifest
from lightloop_plugins.checkpoint.format.safetensors import from_bytes, to_bytes
from lightloop_plugins.checkpoint.format.strict_json import from_json, to_json
from lightloop_plugins.checkpoint.format.tree import decode, encode
from lightloop_plugins.checkpoint.storage.folder import Content

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.int8]
DTYPES += [torch.complex64, torch.complex128, torch.float8_e5m2, torch.uint16, torch.float8_e8m0fnu]


def there_and_back(tree):
    tensors = {}
    text = to_json(encode(tree, tensors))
    file = bytearray(b"".join(to_bytes(tensors)))
    return decode(from_json(text, "state"), from_bytes(file, "tensors"))


def same(one, other):
    if isinstance(one, torch.Tensor):
        bits = lambda t: t.contiguous().reshape(-1).view(torch.uint8) if t.numel() else t
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    return one == other


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    size = math.prod(shape) * dtype.itemsize
    if dtype is torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=dtype).reshape(shape)
    if not size:
        return torch.empty(shape, dtype=dtype)
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


KEYS = st.one_of(
    st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=2))
)
TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**200), 2**200), st.floats(), st.text(), tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_a_tree_comes_back_to_the_bit(tree):
    assert same(tree, there_and_back(tree))


def test_kinds_that_schedulers_and_optimizers_hold():
    tree = {
        "milestones": Counter({3: 1, 5: 2}),
        "betas": (0.9, 0.999),
        "dtype": torch.bfloat16,
        "at": torch.device("cpu"),
    }
    assert same(tree, there_and_back(tree))


def test_the_file_is_plain_safetensors():
    values = {"b": torch.randn(3, 2), "a": torch.arange(4), "c": torch.ones(3, dtype=torch.bool), "e": torch.empty(0)}
    read = safetensors.torch.load(b"".join(to_bytes(values)))
    assert {name: value.tolist() for name, value in read.items()} == {n: v.tolist() for n, v in values.items()}


def test_strided_views_are_stored_as_what_they_show():
    base = torch.randn(4, 6)
    tree = {"t": base.t(), "cut": base[1:3, ::2], "conj": torch.randn(3, dtype=torch.complex64).conj()}
    back = there_and_back(tree)
    assert all(torch.equal(tree[name], back[name]) for name in tree)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        (range(2), "range"),
        (bytearray(b"x"), "bytearray"),
        (print, "builtin"),
        (torch.nn.Linear(1, 1), "Linear"),
    ],
)
def test_what_is_not_plain_is_refused_by_its_path(value, kind):
    with pytest.raises(CheckpointError, match=rf"plugins\.mine\.foo\.1: .*{kind}.* cannot be stored"):
        encode({"plugins": {"mine": {"foo": [0, value]}}}, {})


def test_what_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="contains itself"):
        encode({"x": loop}, {})


def test_tensors_without_values_are_refused():
    with pytest.raises(CheckpointError, match="x: a tensor that is without values cannot be stored"):
        encode({"x": torch.empty(2, device="meta")}, {})


@pytest.mark.filterwarnings("ignore:.*Sparse:UserWarning")
def test_sparse_tensors_of_every_layout_come_back():
    dense = torch.tensor([[0.0, 1.5, 0.0, 0.0], [2.0, 0.0, 0.0, -1.0]])
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 4))  # as embeddings give gradients
    for tensor in (
        twice,
        dense.to_sparse(),
        dense.to_sparse(1),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        dense.to_sparse_bsr((2, 2)),
        dense.to_sparse_bsc((1, 2)),
    ):
        back = there_and_back({"x": tensor})["x"]
        assert (back.layout, back.shape, back.dtype) == (tensor.layout, tensor.shape, tensor.dtype)
        assert torch.equal(back.to_dense(), tensor.to_dense())
    assert not there_and_back({"x": twice})["x"].is_coalesced()


@pytest.mark.parametrize(
    "parts",
    [
        {"indices": torch.tensor([[7]]), "values": torch.ones(1), "coalesced": True, "size": [2]},
        {"indices": torch.tensor([[-1]]), "values": torch.ones(1), "coalesced": False, "size": [2]},
        {"indices": torch.tensor([[0]]), "values": torch.ones(3), "coalesced": False, "size": [2]},
        {"indices": torch.tensor([[0]]), "coalesced": False, "size": [2]},
        7,
    ],
)
def test_sparse_tensors_that_cannot_be_are_refused(parts):
    tensors = {}
    value = encode(parts, tensors)
    with pytest.raises(CheckpointError, match="broken sparse"):
        decode({"$": "sparse", "v": ["sparse_coo", value]}, tensors)


HOSTILE_JSON = {
    "twice": b'{"a":1,"a":2}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deepish": b"[" * 300 + b"]" * 300,
    "nan": b'{"a":NaN}',
    "infinity": b"[-Infinity]",
    "long number": b"9" * 5000,
    "65 bits": b"18446744073709551616",
    "not ascii": '{"ä":1}'.encode(),
    "not utf-8": b'"\xff\xfe"',
    "cut": b'{"a":',
    "empty": b"",
}


@pytest.mark.parametrize("data", HOSTILE_JSON.values(), ids=HOSTILE_JSON.keys())
def test_hostile_json_is_refused(data):
    with pytest.raises(CheckpointError, match=r"^thing is damaged"):
        from_json(data, "thing")


LARGE_JSON = {
    "one text": (b"x", 17 * 2**20, "17,825,792 bytes of JSON; 16,777,216 are read"),
    "64 megabytes": (b"1,", 32 * 2**20, "67,108,864 bytes of JSON; 16,777,216 are read"),
    "many numbers": (b"1,", 1_100_000, "up to 1,100,001 values in its JSON; 1,000,000 are read"),
    "many objects": (b"{},", 600_000, "up to 1,200,001 values in its JSON; 1,000,000 are read"),
    "many lists": (b"[", 1_100_000, "up to 1,100,001 values in its JSON; 1,000,000 are read"),
}


@pytest.mark.parametrize(("part", "times", "said"), LARGE_JSON.values(), ids=LARGE_JSON.keys())
def test_more_json_than_a_state_can_need_is_refused_before_it_is_read(monkeypatch, part, times, said):
    monkeypatch.setattr(strict_json.json, "loads", lambda *arguments, **options: pytest.fail("it is read"))
    with pytest.raises(CheckpointError, match=f"^thing is damaged or not Lightloop's: it has {said}$"):
        from_json(part * times, "thing")


def test_what_could_not_be_read_back_is_not_written(monkeypatch):
    monkeypatch.setattr(strict_json, "MAX_VALUES", 1000)
    with pytest.raises(CheckpointError, match="up to 1,002 values in its JSON; 1,000 are read back: store long lists"):
        Content.of({"numbers": list(range(1000))})


HOSTILE_TREES = {
    "unknown kind": {"$": "module", "v": "os"},
    "two kinds": {"$": "int", "v": "1", "w": 2},
    "kind is a list": {"$": ["int"], "v": "1"},
    "no such tensor": {"$": "tensor", "v": "nowhere"},
    "long int": {"$": "int", "v": "9" * 1000},
    "word": {"$": "int", "v": "one"},
    "dtype": {"$": "dtype", "v": "os.system"},
    "device": {"$": "device", "v": "cuda:abc"},
    "pairs": {"$": "dict", "v": [[1]]},
    "unhashable": {"$": "dict", "v": [[[], 1]]},
    "tensor list": {"$": "tensor", "v": []},
}


@pytest.mark.parametrize("value", HOSTILE_TREES.values(), ids=HOSTILE_TREES.keys())
def test_hostile_trees_are_refused(value):
    with pytest.raises(CheckpointError):
        decode({"x": [value]}, {})


def safetensors_file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return bytearray((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE_TENSORS = {
    "empty": bytearray(),
    "short": bytearray(b"\0" * 7),
    "length beyond": safetensors_file({}, length=10**9),
    "length huge": safetensors_file({}, length=2**63),
    "not json": safetensors_file(b"pickle!!"),
    "list": safetensors_file([1]),
    "unknown dtype": safetensors_file({"a": entry("O8")}, b"0000"),
    "big shape": safetensors_file({"a": entry(shape=(2**40,))}, b"0000"),
    "overflow": safetensors_file({"a": entry(shape=(2**33, 2**33))}, b"0000"),
    "negative": safetensors_file({"a": entry(shape=(-1, -1))}, b"0000"),
    "bool": safetensors_file({"a": entry(shape=(True,))}, b"0000"),
    "gap": safetensors_file({"a": entry(offsets=(4, 8))}, b"00000000"),
    "overlap": safetensors_file({"a": entry(), "b": entry()}, b"0000"),
    "beyond": safetensors_file({"a": entry(shape=(4,), offsets=(0, 16))}, b"0000"),
    "trailing": safetensors_file({"a": entry()}, b"00000000"),
    "missing key": safetensors_file({"a": {"dtype": "F32"}}, b""),
    "twice": safetensors_file(b'{"a":{},"a":{}}'),
    "no offsets": safetensors_file({"a": {"dtype": "F32", "shape": [0], "data_offsets": None}}),
    "many": safetensors_file({f"t{i}": entry(shape=(0,), offsets=(0, 0)) for i in range(110_000)}),
    "other dtype": safetensors_file(
        {"__metadata__": {"dtypes": '{"a":"eval"}'}, "a": entry("U8", (4,), (0, 4))}, b"0000"
    ),
}


@pytest.mark.parametrize("data", HOSTILE_TENSORS.values(), ids=HOSTILE_TENSORS.keys())
def test_hostile_tensor_files_are_refused(data):
    with pytest.raises(CheckpointError, match=r"^thing is damaged"):
        from_bytes(data, "thing")


FILES = {"state.json": (2, "0" * 64), "tensors.safetensors": (10, "1" * 64)}
BODY = {"run": "abc", "step": 3, "batch": 12}


def test_a_manifest_comes_back():
    manifest = read_manifest(write_manifest({**BODY, "plugins": [["clip", "x", 1]]}, FILES), "m")
    assert (manifest.run, manifest.place, manifest.files, manifest.size) == ("abc", (3, 12), FILES, 12)
    assert manifest.body["plugins"] == [["clip", "x", 1]]


@pytest.mark.parametrize("at", range(0, 420, 7))
def test_one_bit_flipped_in_a_manifest_is_noticed(at):
    data = bytearray(write_manifest(BODY, FILES))
    data[at % len(data)] ^= 1 << (at % 8)
    with pytest.raises(CheckpointError):
        read_manifest(bytes(data), "m")


NAMES = ["../x", "/etc/passwd", ".hidden", "a/b", "a\0b", "x" * 101, "", "MANIFEST.json", "a..b", "ä", "a b"]


@pytest.mark.parametrize("name", NAMES)
def test_file_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(CheckpointError, match="cannot be the name of a file"):
        read_manifest(write_manifest(BODY, {**FILES, name: (0, "0" * 64)}), "m")


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": 1.0}, {"step": True}, {"batch": "3"}, {"run": "../../x"}, {"run": None}, {"step": None}],
    ids=str,
)
def test_impossible_manifests_are_refused(change):
    with pytest.raises(CheckpointError):
        read_manifest(write_manifest({**BODY, **change}, FILES), "m")


ODD_BODIES = [
    ({"metrics": 3}, "metrics is int 3, and must be a mapping"),
    ({"metrics": {"loss": "low"}}, "metrics.loss is str 'low', and must be float"),
    ({"plugins": [["clip"]]}, "plugins.0 is list, and must be a list of 3"),
    ({"plugins": [["clip", "x", -1]]}, "plugins.0.2 is int -1, and must be a whole number from 0"),
    ({"options": {"clip": {"limit": 1}}}, "options.clip.limit is int 1, and must be str"),
    ({"environment": []}, "environment is list, and must be a mapping"),
    ({"exact": 1}, "exact is int 1, and must be bool"),
]


@pytest.mark.parametrize(("change", "said"), ODD_BODIES, ids=[said for _, said in ODD_BODIES])
def test_a_manifest_of_another_form_is_refused_by_the_place_in_it(change, said):
    with pytest.raises(CheckpointError, match=f"^m is damaged or not Lightloop's: {re.escape(said)}$"):
        read_manifest(write_manifest({**BODY, **change}, FILES), "m")


def test_a_format_of_the_future_is_refused_by_name():
    with pytest.raises(CheckpointError, match=r"is of format '?2'?; this version of Lightloop reads format 1"):
        read_manifest(write_manifest({**BODY, "format": 2}, FILES), "m")
    with pytest.raises(CheckpointError, match="missing"):
        read_manifest(write_manifest(BODY, {}), "m")
