"""Whatever the bytes of a checkpoint are: it is read, or refused as one that is damaged; within a second; nothing else happens."""

import contextlib
import copy
import json
import os
import sys
import time
import warnings

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import read_manifest, write_manifest
from lightloop_plugins.checkpoint.format.safetensors import from_bytes
from lightloop_plugins.checkpoint.format.strict_json import from_json, to_json
from lightloop_plugins.checkpoint.format.tree import decode
from tests.checkpoint.faults import in_child
from tests.checkpoint.test_golden import GOLDEN

SECONDS = 1.0
"""Of this process alone, whatever else the machine does."""
LARGEST = 2**20
"""Bytes; what is larger takes longer."""
(CHECKPOINT,) = (GOLDEN / "format-1" / "checkpoints").iterdir()
MANIFEST, STATE, TENSORS = (
    (CHECKPOINT / name).read_bytes() for name in ("MANIFEST.json", "state.json", "tensors.safetensors")
)
HEADER = int.from_bytes(TENSORS[:8], "little")
FORBIDDEN = ("import", "exec", "compile", "open", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")

ODD = [
    None,
    True,
    -1,
    2**63,
    2**64,
    10**400,
    0.5,
    -0.0,
    "",
    "\0",
    "../x",
    "x" * 5000,
    [],
    {},
    [[]],
    {"$": "int", "v": "x"},
]
ODD += [{"$": "tensor", "v": "nowhere"}, {"$": "dict", "v": [[[], 1]]}, {"$": "float", "v": "nan"}, {"$": None}]


@st.composite
def changed_bytes(draw, data):
    """``data`` with some bytes changed, cut out, put in, or doubled."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([0, 1, 2, 8, 100, len(data)]))
        new = draw(
            st.one_of(
                st.binary(max_size=9),
                st.just(bytes(data[at : at + length])),
                st.sampled_from([b"\x80\x04", b"[" * 999]),
            )
        )
        data[at : at + draw(st.sampled_from([0, len(new), length]))] = new
    return bytes(data)


@st.composite
def changed_tree(draw, tree):
    """JSON with some of its parts replaced, left out, renamed, doubled or put elsewhere."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 4))):
        part = tree
        while True:
            keys = list(part) if isinstance(part, dict) else range(len(part))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(part[key], (dict, list)) and part[key] and draw(st.integers(0, 3)):
                part = part[key]
                continue
            what = draw(st.integers(0, 3))
            if what == 0:
                del part[key]
            elif what == 1 and isinstance(part, dict):
                part[draw(st.sampled_from(["$", "v", "", "../x", "step", "a" * 200]))] = part.pop(key)
            elif what == 2:
                part[key] = [copy.deepcopy(part[key]) for _ in range(draw(st.sampled_from([2, 3, 20])))]
            else:
                part[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
            break
    return tree


def header_of(data):
    return json.loads(data[8 : 8 + HEADER])


def with_header(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + TENSORS[8 + HEADER :]


def body_of(data):
    return json.loads(data)["body"]


def with_body(body):
    """A manifest whose own hash is right, as one has it who writes it on purpose."""
    files = body.pop("files", None) if isinstance(body, dict) else None
    try:
        files = {name: (entry["size"], entry["sha256"]) for name, entry in files.items()}
        return write_manifest(body, files)
    except (AttributeError, KeyError, TypeError, CheckpointError):
        return to_json({"body": {**body, "files": files}, "sha256": "0" * 64})


def read_state(data):
    return decode(from_json(data, "state"), from_bytes(bytearray(TENSORS), "tensors"))


READERS = {
    "manifest": (lambda data: read_manifest(data, "manifest"), MANIFEST, body_of, with_body),
    "state": (read_state, STATE, json.loads, lambda tree: json.dumps(tree).encode()),
    "tensors": (lambda data: from_bytes(bytearray(data), "tensors"), TENSORS, header_of, with_header),
}


def fuzz(name, examples):
    """Read so many changed files; it is an error if anything but a CheckpointError comes of it, or anything else happens."""
    read, whole, part_of, with_part = READERS[name]
    read(whole)  # as it is, it can be read; and whatever is imported for it is
    seen = []
    watching = False

    def watch(event, arguments):
        if watching and event.startswith(FORBIDDEN):
            seen.append((event, arguments))

    sys.addaudithook(watch)
    warnings.simplefilter("ignore", HypothesisWarning)  # that an example is long, in place of what it has shown

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(changed_bytes(whole), changed_tree(part_of(whole)).map(with_part)))
    def one(data):
        nonlocal watching
        assume(len(data) < LARGEST)
        began, watching = time.process_time(), True
        with contextlib.suppress(CheckpointError):
            read(data)
        watching = False
        assert time.process_time() - began < SECONDS
        assert not seen

    one()


@pytest.mark.parametrize("examples", [150, pytest.param(10_000, marks=pytest.mark.torture)])
@pytest.mark.parametrize("name", READERS)
def test_whatever_the_bytes_are_it_is_read_or_refused(name, examples):
    assert in_child(lambda: fuzz(name, examples)) == 0


def test_the_watch_sees_what_it_is_to_see(monkeypatch):
    monkeypatch.setitem(READERS, "opens", (lambda data: os.listdir(), STATE, *READERS["state"][2:]))
    assert in_child(lambda: fuzz("opens", 5)) == 1
