"""Start the other processes of a run where no launcher has: by running the script again, or by forking."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lightloop_plugins._notebook import in_notebook
from lightloop_plugins.accelerators._launcher.control import RankError

PIPE = "LIGHTLOOP_PARENT_PIPE"
"""Where a child finds the pipe that ends when its parent does."""
NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
)
PATIENCE = 60.0
"""How many seconds children may go on after their parent's script is through."""


class _Family:
    """The processes that this one has started, and what ends with them."""

    def __init__(self) -> None:
        self.store: TCPStore | None = None
        self.children: list[subprocess.Popen[bytes]] = []
        self.forked: list[int] = []
        self.pipe: int | None = None
        self.is_fork = False


_FAMILY = _Family()


def start(count: int) -> None:
    """Start ``count - 1`` processes on this machine, and let this one be rank 0; what they are is in the environment.

    A script is run again by them, from its beginning, with the command line that it was started with. In an interactive
    session or a notebook this process is forked instead; such a child ends when the fit does.

    Raises:
        RuntimeError: where neither is possible.
    """
    by_fork = _is_interactive()
    if by_fork and not hasattr(os, "fork"):
        raise RuntimeError(_HOW + ", and this system cannot fork an interactive session")
    if by_fork and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(_HOW + ", and this session has used CUDA already, which a forked process cannot: restart it")
    if _FAMILY.store is None:
        _FAMILY.store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
    values = ("0", "0", str(count), str(count), "127.0.0.1", str(_FAMILY.store.port), "True")
    os.environ.update(zip(NAMES, values, strict=True))
    for rank in range(1, count):
        if not by_fork:
            _run_again(rank)
        elif _fork(rank):
            return


_HOW = "devices above 1 without a launcher such as torchrun means that the other processes are started from here"


def _is_interactive() -> bool:
    main = sys.modules.get("__main__")
    again = os.path.exists(getattr(main, "__file__", None) or "") or "-c" in sys.orig_argv
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or in_notebook() or not again


def _run_again(rank: int) -> None:
    if not _FAMILY.children:
        reading, _FAMILY.pipe = os.pipe()
        os.set_inheritable(reading, True)
        os.environ[PIPE] = str(reading)
        atexit.register(_at_exit)
    pipe = int(os.environ[PIPE])
    environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    command = [sys.executable, *sys.orig_argv[1:]]
    _FAMILY.children.append(subprocess.Popen(command, env=environ, pass_fds=[pipe], stdin=subprocess.DEVNULL))


def _fork(rank: int) -> bool:
    sys.stdout.flush(), sys.stderr.flush()
    child = os.fork()
    if child:
        _FAMILY.forked.append(child)
        return False
    torch.set_num_threads(1)  # the threads of the parent's pool are not here, and would be waited for
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    _FAMILY.is_fork, _FAMILY.forked = True, []
    return True


def watch_parent() -> None:
    """In a process that :func:`start` has started: end when its parent does."""
    if PIPE not in os.environ or _FAMILY.children:
        return
    pipe = int(os.environ.pop(PIPE))

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(pipe, 1)
        time.sleep(0.5)  # a parent that has finished waits for us; one that is gone does not
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="lightloop-parent").start()


def check_children() -> None:
    """Raise if a process that was started from here has ended."""
    for rank, child in enumerate(_FAMILY.children, start=1):
        if child.poll() is not None:
            raise RankError(
                f"rank {rank}, which was started from here, has ended with exit status {child.returncode}: its own error is "
                "above. It runs the same script, and must come to the same calls of the Trainer"
            )
    for rank, pid in enumerate(_FAMILY.forked, start=1):
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            raise RankError(f"rank {rank}, which was forked from here, has ended")


def finish(failed: bool) -> None:
    """After a run: a forked child ends here, and its parent waits for it; of a failed run, no child goes on."""
    if _FAMILY.is_fork:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(int(failed))
    for pid in _FAMILY.forked:
        _reap(pid, PATIENCE)
    if _FAMILY.forked:
        _FAMILY.forked = []
        for name in NAMES:
            os.environ.pop(name, None)
    if failed and _FAMILY.children:
        _end_children(2.0)


def started() -> bool:
    """Whether the processes of this run were started by one of them."""
    return bool(_FAMILY.children or _FAMILY.forked or _FAMILY.is_fork)


def _reap(pid: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
                return
            time.sleep(0.01)


def _end_children(seconds: float) -> None:
    until = time.monotonic() + seconds
    for child in _FAMILY.children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))
    for child in _FAMILY.children:
        if child.poll() is None:
            child.terminate()
    for child in _FAMILY.children:
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()


def _at_exit() -> None:
    failed = getattr(sys, "last_value", None) is not None
    _end_children(0.5 if failed else PATIENCE)
    if _FAMILY.pipe is not None:
        os.close(_FAMILY.pipe)
        _FAMILY.pipe = None
