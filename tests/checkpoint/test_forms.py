"""A state that somebody has made, with the right hashes: whatever is in it, it is gone on from, or refused by its place."""

import copy
import random

import pytest
import torch

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.folder import Content
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.rig import LOADERS, stop, train

OPTIONS = {"accumulate_grad_batches": 4, "max_epochs": 2, "ema_decay": 0.9, "early_stopping_monitor": "val"}
AT = 7
ODD = [None, True, -1, 2**40, 0.5, "x", [], [["x"]], {}, {"x": 1}, torch.zeros(0), torch.zeros(3, dtype=torch.int64)]
GONE = object()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("saved")
    train(place, LOADERS["plain"], [stop(AT)], early_stop_callback=True, **OPTIONS)
    return load_newest(LocalFolder(place))


def paths(tree, path=()):
    """Every place in ``tree``, from the top."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    for key, part in parts:
        yield (*path, key)
        yield from paths(part, (*path, key))


def changed(tree, path, value):
    """A copy of ``tree`` with ``value`` at ``path``."""
    key, *rest = path
    new = dict(tree) if isinstance(tree, dict) else list(tree)
    if rest:
        new[key] = changed(tree[key], rest, value)
    elif value is GONE:
        del new[key]
    else:
        new[key] = copy.deepcopy(value)
    return tuple(new) if isinstance(tree, tuple) else type(tree)(new) if isinstance(tree, dict) else new


def cases(state):
    """Every place with every odd value, and without it; in what is a plugin's own, without it alone."""
    for path in paths(state):
        own = path[0] == "hparams" or (path[0] == "plugins" and len(path) > 3) or path[:2] == ("module", "extra")
        yield from ((path, value) for value in (() if own else ODD))
        yield path, GONE


def goes_on(place, saved, path, value):
    """Whether a run goes on from what was changed; if not, what was said. Anything but a CheckpointError is raised."""
    folder = LocalFolder(place)
    body = {name: part for name, part in saved.manifest.body.items() if name not in ("files", "format")}
    folder.write(saved.name, Content.of(changed(saved.state, path, value)), body)
    try:
        train(place, LOADERS["plain"], [stop(AT + 2)], folder.path / saved.name, early_stop_callback=True, **OPTIONS)
    except CheckpointError as error:
        return str(error)
    finally:
        for name in folder.names():
            folder.remove(name)
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", [0.006, pytest.param(1.0, marks=pytest.mark.torture)])
def test_whatever_is_in_a_state_it_is_gone_on_from_or_refused_by_its_place(tmp_path, saved, share):
    every = list(cases(saved.state))
    refused = 0
    for path, value in random.Random(1).sample(every, int(share * len(every))):
        try:
            said = goes_on(tmp_path, saved, path, value)
        except Exception as error:
            error.add_note(f"with {value!r} at {path}")
            raise
        if said is not None:
            assert f"{tmp_path}/{saved.name}" in said, said
            refused += 1
    assert refused > 0.5 * share * len(every)
