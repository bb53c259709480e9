import collections
import dataclasses
import types

import torch
from torch.nn.utils.rnn import pack_sequence

from lightloop.toolkit import map_leaves


@dataclasses.dataclass(frozen=True)
class Record:
    x: object
    made: int = dataclasses.field(init=False, default=3)


def test_every_container_keeps_its_type_and_every_leaf_has_its_path():
    class listed(list):
        pass

    point = collections.namedtuple("point", "a b")
    packed = pack_sequence([torch.zeros(2)])
    tree = {
        "list": listed([1, (2, point(3, None))]),
        "record": Record({"deep": [4]}),
        "fixed": types.MappingProxyType({"k": 5}),
        "default": collections.defaultdict(list, d=6),
        7: "text",
        "packed": packed,
    }
    paths = {}

    def note(leaf, path):
        paths[path] = leaf
        return (leaf,)

    made = map_leaves(note, tree)
    assert paths.pop("packed") is packed
    assert paths == {
        "list.0": 1,
        "list.1.0": 2,
        "list.1.1.a": 3,
        "list.1.1.b": None,
        "record.x.deep.0": 4,
        "record.made": 3,
        "fixed.k": 5,
        "default.d": 6,
        "7": "text",
    }
    assert [type(made[key]) for key in tree if key not in (7, "packed")] == [
        listed,
        Record,
        types.MappingProxyType,
        collections.defaultdict,
    ]
    assert type(made["list"][1][1]) is point
    assert made["list"][1][1].a == (3,)
    assert made["record"].x == {"deep": [(4,)]}
    assert made["default"].default_factory is list
    assert tree["list"][0] == 1
    assert tree["default"]["d"] == 6


def test_a_container_may_be_taken_for_a_leaf():
    def is_leaf(value, path):
        return path in ("x", "y.0")

    found = map_leaves(lambda leaf, path: (path, leaf), {"x": [1, 2], "y": [[3], [4]]}, is_leaf=is_leaf)
    assert found == {"x": ("x", [1, 2]), "y": [("y.0", [3]), [("y.1.0", 4)]]}
    assert map_leaves(lambda leaf, path: (path, leaf), 5) == ("", 5)
