"""Put weights into a module, and say what of the one does not fit the other."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from lightloop.toolkit import warn
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.state.modules import every_tensor, first_names, split_as
from lightloop_plugins.checkpoint.state.partial import LeftOut, listed, odd_ones

log = logging.getLogger("lightloop")
T = TypeVar("T")
_COMPILED = re.compile(r"(?<![^.])_orig_mod\.")


def fill(module: nn.Module, weights: Mapping[str, Any], what: str, strict: bool = True) -> None:
    """Put ``weights`` into ``module``, which stays as it was if they are of another one.

    Raises:
        CheckpointError: if names differ under ``strict``; if none is the same; if a shape differs.
    """
    own = module.state_dict()
    left_out: LeftOut = by_own_names(getattr(weights, "left_out", {}), every_tensor(module))
    renamed = by_own_names(weights, own)
    firsts = first_names(module) if left_out else {}
    missing = sorted(name for name in set(own) - set(renamed) if firsts.get(name, name) not in left_out)
    odd = sorted(set(renamed) - set(own))
    kept = {name: value for name, value in renamed.items() if name in own}
    if missing or odd:
        _tell_names(module, what, missing, odd, strict or not kept)
    for name, value in kept.items():
        if isinstance(value, Tensor) and value.shape != own[name].shape:
            raise CheckpointError(
                f"{what}: {name} has shape {list(value.shape)} there, {list(own[name].shape)} in {type(module).__name__}"
            )
    if left_out:
        _say_partial(module, left_out, what, strict)
    split = {name: split_as(v, own[name]) if isinstance(v, Tensor) else v for name, v in kept.items()}
    module.load_state_dict(split, strict=False)


def by_own_names(values: Mapping[str, T], own: Mapping[str, Any]) -> dict[str, T]:
    """``values`` by the names of ``own``: ``torch.compile`` puts a name of its own before those of what it compiles."""
    here = {_COMPILED.sub("", name): name for name in own}
    there = {_COMPILED.sub("", name): name for name in values}
    if len(here) != len(own) or len(there) != len(values):  # a part and its compiled twin are told apart by that name
        return dict(values)
    return {here.get(plain, name): values[name] for plain, name in there.items()}


def _tell_names(module: nn.Module, what: str, missing: list[str], odd: list[str], refuse: bool) -> None:
    """Say which names only one side has, as an error or as a warning."""
    differ = f"it lacks {_few(missing)} and has {_few(odd)} beside"
    if not refuse:
        warn(f"{what} is not all of {type(module).__name__}: {differ}. What is lacking stays as it is")
        return
    common = len(module.state_dict()) - len(missing)
    advice = "strict=False loads what fits by name" if common else "no name is the same, so that nothing can be loaded"
    raise CheckpointError(f"{what} is of another module than {type(module).__name__}: {differ}. {advice}")


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "nothing") + more


def _say_partial(module: nn.Module, left_out: LeftOut, what: str, strict: bool) -> None:
    """Say what a partial checkpoint lacks, and whether ``module`` has it: what its weights were trained over."""
    odd = odd_ones(left_out, every_tensor(module))
    lacks = f"{what} is partial: it lacks {len(left_out)} tensors of the module, {listed(left_out)}"
    if not odd:
        log.info("%s, which are here as they were there", lacks)
        return
    other = f"{lacks}. Its weights were trained over other values than {type(module).__name__} has: {listed(odd)}"
    if strict:
        raise CheckpointError(
            f"{other}. Give the module the pretrained weights of then first; strict=False takes these weights all the same"
        )
    warn(f"{other}. They are taken all the same, since strict=False")
