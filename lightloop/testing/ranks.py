"""Run a function in several processes that are one another's ranks, as a launcher would start them."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lightloop.exceptions import notes_of
from lightloop.host.discovery import discover


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
    after ``timeout`` seconds is killed. What they wrote follows on stderr when they have ended, and of one that was killed
    where each of its threads was.

    Returns:
        The outcome of each rank.
    """
    context = multiprocessing.get_context("forkserver")
    plugins = [found.value.partition(":")[0] for found in discover().values() if found.plugin]
    context.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.fsdp", *plugins])
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=timeout), wait_for_workers=False)
    until = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="lightloop-ranks-") as folder:
        begun = []
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
            written = Path(folder, str(rank))
            what = (there, written, until, environ, function, arguments)
            process = context.Process(target=_rank, args=what, daemon=True, name=f"rank {rank}")
            process.start()
            there.close()
            begun.append((process, here, written))
        return [_outcome(*each, until + 1.0) for each in begun]  # one that hangs says where, meanwhile


def _outcome(process: BaseProcess, pipe: Connection, written: Path, until: float) -> Outcome:
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
    if written.exists() and (text := written.read_text(errors="replace")):
        sys.stderr.write(f"{process.name} wrote:\n{text.rstrip()}\n")
    return outcome


def values_of(outcomes: list[Outcome]) -> list[Any]:
    """What each rank returned.

    Raises:
        AssertionError: if one of them failed, or had to be killed.
    """
    for rank, outcome in enumerate(outcomes):
        if outcome.error is not None or outcome.status != 0:
            raise AssertionError(f"rank {rank} of {len(outcomes)}: {outcome}\n{outcome.trace}")
    return [outcome.value for outcome in outcomes]


def _rank(
    pipe: Connection,
    written: Path,
    until: float,
    environ: dict[str, str],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.dump_traceback_later(max(0.1, until - time.monotonic()), file=2)
    os.environ.update(environ)
    torch.set_num_threads(1)
    began = time.monotonic()
    outcome = Outcome()
    try:
        outcome.value = function(*arguments)
    except BaseException as error:
        outcome.error = "\n".join([f"{type(error).__name__}: {error}", *notes_of(error)])
        outcome.trace = traceback.format_exc()
    outcome.seconds = time.monotonic() - began
    sys.stdout.flush(), sys.stderr.flush()
    pipe.send_bytes(pickle.dumps(outcome))  # tensors by value: this process, whose memory they would share, ends here
    pipe.close()
    os._exit(int(outcome.error is not None))
