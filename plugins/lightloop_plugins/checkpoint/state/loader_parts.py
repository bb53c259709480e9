"""What is in a loader: the generators that it and its parts draw from, and the DataLoaders whose workers live on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lightloop_plugins.checkpoint.state.random_state import is_generator, keep_global, set_all, take_all

MAX_PARTS = 1000
"""So many objects are looked into at most; a dataset may hold each of its samples as one."""
MAX_HELD = 64
"""Lists and dicts that are longer hold samples, not parts."""
_FIRST = ("dataset", "sampler", "batch_sampler", "loader")
"""Attributes by whose names a part is known that is held by several."""
_LEAVES = (type, FunctionType, MethodType, ModuleType, Tensor, nn.Module, _BaseDataLoaderIter)


def generators_in(loader: Any) -> dict[str, Any]:
    """Generators that a loader, its samplers, datasets and whatever else is in it hold, by the path to them, each once."""
    found: dict[str, Any] = {}
    for path, part in _parts(loader):
        for name, value in vars(part).items():
            for key, each in _held(name, value):
                if is_generator(each) and all(each is not other for other in found.values()):
                    found[_join(path, key)] = each
    return found


def persistent_in(loader: Any) -> list[str]:
    """The DataLoaders in it, by path, whose workers have begun and live through epochs."""
    return [path for path, part in _persistent(loader) if part._iterator is not None]


def revive(loader: Any, paths: Iterable[str]) -> None:
    """Let the workers of the DataLoaders at ``paths`` begin, as they had; no random number is drawn for it.

    Such a loader draws a number when its workers begin, and none in the epochs that they live on through.
    """
    wanted = set(paths)
    for path, part in _persistent(loader):
        if path in wanted and part._iterator is None:
            with keep_global():
                generators = {} if part.generator is None else {"own": part.generator}
                before = take_all(generators)
                begin(part, ())
                set_all(generators, before)


def begin(loader: DataLoader[Any], indices: Any) -> Iterator[Any]:
    """Begin to read ``loader`` by ``indices`` in place of its sampler's; afterwards it has its own again."""
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    own, workers = vars(loader)[name], loader._iterator
    vars(loader)[name] = indices  # torch refuses to set it
    if workers is not None:
        workers._index_sampler = indices
    try:
        return iter(loader)
    finally:
        vars(loader)[name] = own
        if loader._iterator is not None:
            loader._iterator._index_sampler = own


def _persistent(loader: Any) -> Iterator[tuple[str, Any]]:
    for path, part in _parts(loader):
        if isinstance(part, DataLoader) and part.persistent_workers and part.num_workers:
            yield path, part


def _parts(loader: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    waiting = [("", loader)]
    while waiting and len(seen) < MAX_PARTS:
        path, part = waiting.pop()
        if id(part) in seen or isinstance(part, _LEAVES) or not hasattr(part, "__dict__"):
            continue
        seen.add(id(part))
        yield path, part
        own = vars(part)
        names = [name for name in own if name not in _FIRST] + [name for name in _FIRST if name in own]
        waiting += [(_join(path, key), each) for name in names for key, each in _held(name, own[name])]


def _held(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``value``, or what is in it where that is a short list or dict, each with its key."""
    if isinstance(value, (list, tuple)):
        if len(value) <= MAX_HELD:
            yield from ((f"{name}.{index}", each) for index, each in enumerate(value))
    elif isinstance(value, Mapping):
        if len(value) <= MAX_HELD:
            yield from ((f"{name}.{key}", each) for key, each in value.items())
    else:
        yield name, value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
