"""How the processes of one launch meet, also where others have met before that are gone."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lightloop_plugins.accelerators._launcher.control import RankError
from lightloop_plugins.accelerators._launcher.environment import Place, ProcessWorld, environment

_OPEN: dict[tuple[int, str], Store] = {}
"""The stores that this process has connected to, by process and address; a port can be bound once, whatever number of runs follow."""


def join(backend: str, timeout: timedelta, alive: Callable[[], None] = lambda: None) -> ProcessWorld:
    """Meet the other processes of this launch.

    Args:
        backend: what moves tensors, such as "gloo" or "cpu:gloo,cuda:nccl".
        timeout: how long a rank waits for the others, now and later.
        alive: is called while this rank waits, and may raise.

    Raises:
        RankError: if not all of them come in time.
    """
    if dist.is_initialized():
        return ProcessWorld(None, timeout, owns=False)
    place = environment()
    assert place is not None
    key = f"{place.address}:{place.port}"
    mine = (os.getpid(), key)  # a forked process must not talk through the connection of its parent
    if mine not in _OPEN:
        url = "env://" if place.launcher == "torchrun" else f"tcp://{key}?rank={place.rank}&world_size={place.size}"
        found = (place.rank, place.size) if place.launcher == "torchrun" else ()
        _OPEN[mine] = next(rendezvous(url, *found, timeout=timeout))[0]
    meeting = Meeting(_OPEN[mine], place).wait(timeout, alive)
    store = PrefixStore(f"lightloop/{meeting}", _OPEN[mine])
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout)
    return ProcessWorld(store, timeout, owns=True)


class Meeting:
    """Ranks that agree on a name under which nobody has left anything in their store.

    torchrun keeps the store when its processes start again, and in it what those before have left: who takes their
    addresses for today's finds nobody there. So each rank says that it is here by a name that is new; rank 0 offers a
    meeting to the names that it sees; and who finds its own among them says yes, which a rank that is gone cannot.
    """

    def __init__(self, store: Store, place: Place) -> None:
        self._store, self._place = PrefixStore("lightloop", store), place
        self._name = uuid.uuid4().hex
        self._ranks = [f"here/{rank}" for rank in range(place.size)]
        self._offered: list[str] = []
        self._meeting: str | None = None
        """The one that this rank has said yes to last."""

    def wait(self, timeout: timedelta, alive: Callable[[], None]) -> str:
        """The meeting's name, once every rank has said yes to it."""
        self._store.set(self._ranks[self._place.rank], self._name)
        until, pause = time.monotonic() + timeout.total_seconds(), 0.005
        while True:
            if self._place.rank == 0:
                self._offer()
            self._accept()
            if self._meeting is not None and self._agreed() == self._place.size:
                return self._meeting
            alive()
            if time.monotonic() > until:
                raise self._late(timeout)
            time.sleep(pause)
            pause = min(0.2, 1.2 * pause)  # of many ranks, each asks the store

    def _offer(self) -> None:
        """Invite whoever is here, and again when that has changed."""
        if not self._store.check(self._ranks):
            return
        names = [name.decode() for name in self._store.multi_get(self._ranks)]
        if names != self._offered:
            self._offered = names
            self._store.set("offer", json.dumps([uuid.uuid4().hex, names]))

    def _accept(self) -> None:
        if not self._store.check(["offer"]):
            return
        meeting, names = json.loads(self._store.get("offer"))
        if meeting != self._meeting and names[self._place.rank : self._place.rank + 1] == [self._name]:
            self._meeting = meeting
            self._store.add(f"{meeting}/yes", 1)

    def _agreed(self) -> int:
        return self._store.add(f"{self._meeting}/yes", 0)

    def _late(self, timeout: timedelta) -> RankError:
        place = self._place
        here = sum(self._store.check([rank]) for rank in self._ranks) if self._meeting is None else self._agreed()
        return RankError(
            f"rank {place.rank} waited {timeout.total_seconds():g} s on {socket.gethostname()} and "
            f"{min(here, place.size - 1)} of the {place.size} processes that {place.launcher} announces have come: each must "
            "make the same calls of the Trainer"
        )
