"""Run a function in several processes that are one another's ranks, as a launcher would start them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lightloop.discovery import discover


@dataclass
class Outcome:
    """What became of one rank."""

    value: Any = None
    """What the function returned."""
    error: str | None = None
    """Type and text of what it raised, with its notes."""
    status: int | None = None
    """The exit status of the process; None if it had to be killed."""
    seconds: float = 0.0
    """How long the function ran."""
    trace: str = field(default="", repr=False)


def run_ranks(function: Callable[..., Any], size: int, *arguments: Any, timeout: float = 120.0) -> list[Outcome]:
    """Call ``function(*arguments)`` in ``size`` processes with the environment that torchrun sets.

    They are forked from a server that has imported torch and every plugin already, so that a call takes some
    hundredths of a second after the first. What goes there and back must pickle; a process that has not ended by itself
    after ``timeout`` seconds is killed.

    Returns:
        The outcome of each rank.
    """
    context = multiprocessing.get_context("forkserver")
    plugins = [found.value.partition(":")[0] for found in discover().values() if found.plugin]
    context.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.fsdp", *plugins])
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=timeout), wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        process = context.Process(target=_rank, args=(there, environ, function, arguments), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    until = time.monotonic() + timeout
    outcomes = []
    for pipe, process in zip(pipes, processes, strict=True):
        outcome = Outcome()
        try:
            if pipe.poll(max(0.0, until - time.monotonic())):
                outcome = pickle.loads(pipe.recv_bytes())
        except EOFError:  # it went without a word
            pass
        process.join(max(0.1, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        else:
            outcome.status = process.exitcode
        outcomes.append(outcome)
    return outcomes


def values_of(outcomes: list[Outcome]) -> list[Any]:
    """What each rank returned.

    Raises:
        AssertionError: if one of them failed, or had to be killed.
    """
    for rank, outcome in enumerate(outcomes):
        if outcome.error is not None or outcome.status != 0:
            raise AssertionError(f"rank {rank} of {len(outcomes)}: {outcome}\n{outcome.trace}")
    return [outcome.value for outcome in outcomes]


def _rank(pipe: Connection, environ: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(environ)
    torch.set_num_threads(1)
    began = time.monotonic()
    outcome = Outcome()
    try:
        outcome.value = function(*arguments)
    except BaseException as error:
        outcome.error = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        outcome.trace = traceback.format_exc()
    outcome.seconds = time.monotonic() - began
    pipe.send_bytes(pickle.dumps(outcome))  # tensors by value: this process, whose memory they would share, ends here
    pipe.close()
    os._exit(int(outcome.error is not None))
