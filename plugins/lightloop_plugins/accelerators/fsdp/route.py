"""Whether all ranks go through the same blocks of a sharded module: those that do not would be given parts of two blocks for one."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from lightloop_plugins.accelerators._launcher.control import ControlledWorld, RankError
from lightloop_plugins.accelerators.fsdp.sharding import groups_of

KEPT = 1000
"""How many blocks an error may look back."""
ADVICE = "look for a branch in forward that goes by the data of a rank, and let all ranks go through the same blocks"


class Route:
    """The blocks that this rank has gathered since ranks last compared theirs.

    Args:
        module: what ``fully_shard`` has sharded.
        world: the ranks.
        check: whether ranks tell one another of each block before they gather it.
    """

    def __init__(self, module: nn.Module, world: ControlledWorld, check: bool) -> None:
        self._world, self._check = world, check
        self._sum, self._names = 0, deque[str](maxlen=KEPT)
        for name, part in module.named_modules():
            if isinstance(part, FSDPModule):
                for group in groups_of(part):
                    group.pre_forward = self._noting(name or type(module).__name__, group.pre_forward)

    def _noting(self, name: str, pre_forward: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self._sum = zlib.crc32(name.encode(), self._sum)
            self._names.append(name)
            if self._check:
                self._meet(name)
            return pre_forward(*arguments)

        return noted

    def _meet(self, name: str) -> None:
        try:
            self._world.meet(f"the forward of block {name!r}")
        except RankError as error:
            error.add_note(f"fsdp: {ADVICE}")
            raise

    def compare(self) -> None:
        """Begin anew, if the blocks were the same on all ranks, in the same order; all ranks call it together.

        Raises:
            RankError: if they were not.
        """
        least, most = self._world.meet("comparing the blocks gone through", self._sum, -self._sum)
        if least != -most:
            raise RankError(_parting(self._world.everyones([*self._names])))
        self._sum = 0
        self._names.clear()


def _parting(routes: list[list[str]]) -> str:
    first = routes[0]
    rank, other = next((rank, each) for rank, each in enumerate(routes) if each != first)
    at = next(i for i, pair in enumerate(zip([*first, None], [*other, None], strict=False)) if pair[0] != pair[1])
    here, there = (repr(each[at]) if at < len(each) else "nothing" for each in (first, other))
    return (
        f"the ranks went through different blocks: rank 0 came to {here} where rank {rank} came to {there}, {at} blocks after "
        f"the last step. Each block is gathered from all ranks, so that its weights were mixed with another's: {ADVICE}"
    )
