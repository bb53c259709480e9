"""Requeue a SLURM job when its time is up, and resume the run in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop_plugins._handlers import Handlers, ending
from lightloop_plugins.checkpoint.keys import RESUME
from lightloop_plugins.run_dir import RUN_VERSION

INTERACTIVE = ("bash", "interactive")
"""What jobs are called in which a person types; they cannot be put back."""
_FITS: dict[str, int] = {}
"""How many fits this process has begun in a job: a job that is started again comes to them in the same order."""


class Slurm(Plugin):
    """In a SLURM batch job, save when the signal comes, requeue the job, and resume when it starts again.

    The handler notes the signal; the fit ends after the batch on every rank, a checkpoint is written, rank 0 calls
    ``scontrol requeue`` (not for a job that was cancelled), and the processes die by the signal, as those of
    ``end_on_signals`` do. SIGTERM, with which SLURM ends a job's processes, ends the fit likewise, without the call; a
    further signal changes nothing, for SLURM kills soon enough. Handlers are put back however the fit ends, and one of the user's is called as well.

    A run is called after its job, ``slurm-<id>``, and a second fit of the script ``slurm-<id>-2``. Where the job was
    started again (``SLURM_RESTART_COUNT``) and ``resume`` is not given, it goes on from the newest checkpoint of its own:
    one of another job is refused. Outside of SLURM, and in interactive jobs, this plugin does nothing.
    """

    name = "slurm"
    after = ("strategy", "signals")
    before = ("run_dir", "checkpoint")
    requires = ("run_dir", "checkpoint", "resume")
    state = ("_run",)
    transient = ("_handlers", "_loop", "_came")

    requeue: bool = option(
        False,
        "In a SLURM job, save and requeue the job when the signal comes, and resume when it starts again.",
        flag="auto_requeue",
        switch=True,
        neutral=True,
    )
    signal: str = option(
        "SIGUSR1",
        "Signal that SLURM sends before the job's time is up.",
        flag="requeue_signal",
        enables=False,
        neutral=True,
    )

    def validate(self) -> None:
        if not self.signal.startswith("SIG") or not hasattr(signal, self.signal):
            raise self.invalid("signal", "the name of a signal, such as 'SIGUSR1'")
        self._handlers = Handlers()
        self._loop: Loop | None = None
        self._came: list[str] = []
        self._run: str | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._came, self._loop, self._run = [], None, None
        job = job_id()
        if loop.stage != "fit" or job is None:
            loop.opt_out(self)
            return
        _FITS[job] = _FITS.get(job, 0) + 1
        self._run = f"slurm-{job}" if _FITS[job] == 1 else f"slurm-{job}-{_FITS[job]}"
        loop.stash[RUN_VERSION] = self._run
        if int(os.environ.get("SLURM_RESTART_COUNT") or 0):
            loop.stash[RESUME] = "auto"
        self._loop = loop
        self._handlers.install({getattr(signal, self.signal), signal.SIGTERM}, self._note)

    @hookimpl(wrapper=True)
    def prepare_loader(self, loader: Iterable[Any]) -> Generator[None, Iterable[Any], Iterable[Any]]:
        self._handlers.shelter(loader)
        return (yield)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        try:
            if self._loop is not None and loop.status != "failed":
                self._end(loop)
        finally:
            self._handlers.remove()
            self._loop = None

    def _end(self, loop: Loop) -> None:
        """Everything is saved, on every rank: put the job back, and end this process."""
        here = (name if name in self._came else None for name in (self.signal, "SIGTERM"))
        requeue, ended = loop.world.agree(*here)
        failure = loop.world.broadcast(put_back() if requeue and loop.world.is_main else None)
        if failure is not None:
            raise RuntimeError(
                f"the run is saved, and its job is not put back into the queue: {failure}. Submit it again"
            )
        if (name := requeue or ended) is not None:
            raise ending(getattr(signal, name))  # raised when everybody's teardown is done

    def _note(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._loop is not None and name not in self._came:
            self._came.append(name)
            self._loop.interrupt(name)
            os.write(2, f"\n{name}: training ends after this batch\n".encode())

    def state_dict(self) -> dict[str, Any]:
        return {"run": self._run}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        by_itself = self._loop is not None and RESUME in self._loop.stash
        if by_itself and state["run"] != self._run:
            raise ValueError(
                f"slurm: the newest checkpoint is of {state['run']}, and this is {self._run}, started again: give each job a "
                "checkpoint_dir of its own, or say with resume= from what to go on"
            )


def job_id() -> str | None:
    """What ``scontrol`` calls the job in which this process is; None outside of a job that can be put back."""
    environ = os.environ
    if "SLURM_JOB_ID" not in environ or environ.get("SLURM_JOB_NAME") in INTERACTIVE:
        return None
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ["SLURM_JOB_ID"]


def put_back() -> str | None:
    """Have SLURM put this process's job back into the queue, unless it was cancelled; what went wrong, if something did."""
    job = str(job_id())
    try:
        if cancelled(scontrol("show", "job", job, "-o")):
            return None
        scontrol("requeue", job)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{error} {getattr(error, 'stderr', None) or ''}".strip()
    return None


def scontrol(*arguments: str) -> str:
    """What the program ``scontrol`` prints.

    Raises:
        OSError, subprocess.CalledProcessError: if there is none, or it fails.
    """
    return subprocess.run(["scontrol", *arguments], capture_output=True, text=True, check=True).stdout


def cancelled(shown: str) -> bool:
    """Whether a job is over because somebody ended it, by what ``scontrol show job`` says while its processes get SIGTERM.

    One that has to make way is still running then.
    """
    return bool(re.search(r"\bJobState=(CANCELLED|COMPLETING)\b", shown)) and "Reason=TimeLimit" not in shown
