import atexit
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch
from torch.distributed import TCPStore
from torch.utils.data import DataLoader

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop_plugins._handlers import Terminated
from lightloop_plugins.signals import Signals
from tests.checkpoint.faults import in_child
from tests.signalled import Signalled

BARE = ["-*", "signals"]


@pytest.fixture(autouse=True)
def restored():
    """Signals are handled afterwards as they were before."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    assert before == {number: signal.getsignal(number) for number in numbers}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_the_fit_ends_after_the_batch_and_then_the_process(name):
    trainer, module = Trainer(BARE), Signalled(name)
    with pytest.raises(Terminated) as ended:
        trainer.fit(module, probe_batches(5))
    assert ended.value.number == getattr(signal, name)
    assert (trainer.loop.status, trainer.loop.stop_reason, len(module.seen)) == ("interrupted", name, 3)
    pickle.loads(pickle.dumps(trainer))


def test_a_second_one_ends_the_process_at_once():
    module = Signalled("SIGTERM", "SIGUSR1")
    with pytest.raises(Terminated) as ended:
        Trainer(BARE).fit(module, probe_batches(5))
    assert ended.value.number == signal.SIGUSR1
    assert len(module.seen) == 2


PROGRAM = """
import atexit, contextlib, os, sys
from lightloop import Trainer
from lightloop.testing import probe_batches
from tests.signalled import Signalled

atexit.register(print, "at exit")
with contextlib.ExitStack() as around:
    around.callback(print, "closed")
    try:
        Trainer(["-*", "signals"]).fit(Signalled("SIGTERM"), probe_batches(5))
    except BaseException as error:
        if sys.argv[1] == "goes on":
            sys.exit(print(type(error).__name__))
        raise
print("never")
"""


@pytest.mark.parametrize(
    ("does", "status", "says"), [("", -signal.SIGTERM, "closed,at exit"), ("goes on", 0, "Terminated,closed,at exit")]
)
def test_the_process_dies_by_the_signal_when_all_around_the_run_is_closed_unless_it_goes_on(does, status, says):
    done = subprocess.run([sys.executable, "-c", PROGRAM, does], capture_output=True, text=True, check=False)
    assert (done.returncode, ",".join(done.stdout.splitlines())) == (status, says), done.stderr
    assert done.stderr == "\nSIGTERM: training ends after this batch\n"


def in_a_process():
    Trainer(BARE).fit(Signalled("SIGTERM"), probe_batches(5))


def test_a_process_of_multiprocessing_says_it_by_its_exit_status():
    process = multiprocessing.get_context("fork").Process(target=in_a_process)
    process.start()
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM


def test_a_signal_that_kills_nobody_ends_the_process_all_the_same():
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        atexit._clear()  # those of the tests
        try:
            Terminated(signal.SIGTERM).die()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGTERM


MOMENTS = [
    ("setup", 0), ("before_fit", 0), ("before_batch", 0), ("after_batch", 2), ("before_evaluation_batch", 4),
    ("after_evaluation", 1), ("between_batches", 5), ("after_epoch", 0), ("after_fit", 0), ("teardown", 0),
]  # fmt: skip
"""A hook, and in which of its calls the signal comes."""


class Sender(Plugin):
    """Sends the signal ``number`` to every process of the group, in call ``at`` of the hook ``moment``."""

    name = "sender_for_test"
    after = ("checkpoint", "signals", "interrupt")

    def __init__(self, number, moment, at):
        self.number, self.moment, self.at = number, moment, at
        super().__init__()

    def came(self, hook):
        self.at -= hook == self.moment
        if hook == self.moment and self.at == -1:
            os.killpg(0, self.number)


def _sends(hook):
    return hookimpl(lambda self, loop: self.came(hook))


for _hook, _ in MOMENTS:
    setattr(Sender, _hook, _sends(_hook))


class Validated(Probe):
    def validation_step(self, batch):
        self.log("val", batch.mean())


NEVER = ("setup", -1)


def life(folder, number=signal.SIGTERM, moment=NEVER, workers=2):
    """Train in a session of its own, from the newest checkpoint on, with workers; what the weight is at the end."""
    os.setsid()
    ahead = 1 if workers else None  # as few as can be: the others are read when the signal has come
    loader = DataLoader(torch.arange(1.0, 7.0), 1, collate_fn=sum, num_workers=workers, prefetch_factor=ahead)
    plugins = ["-*", "lockstep", "signals", "interrupt", "run_dir", "checkpoint", "resume", "validation"]
    trainer = Trainer([*plugins, Sender(number, *moment)], checkpoint_dir=folder, save_every=None)
    module = Validated()
    warnings.filterwarnings("ignore", message="going on inside an epoch of a DataLoader with 2 workers")
    try:
        result = trainer.fit(module, loader, loader, resume="auto", val_check_interval=3)
        (folder / "outcome").write_text(f"{result.status} {module.w.item()}")
    except Terminated as end:
        end.die()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.torture), 2])
@pytest.mark.parametrize(
    "moment",
    [each if index % 3 else pytest.param(each, marks=pytest.mark.torture) for index, each in enumerate(MOMENTS)],
)
def test_a_signal_to_the_whole_group_at_any_moment_is_saved_and_not_swallowed(tmp_path, moment, workers):
    status = in_child(lambda: life(tmp_path, signal.SIGTERM, moment, workers))
    assert status == -signal.SIGTERM
    assert not (tmp_path / "outcome").exists()
    assert list(tmp_path.glob("*/MANIFEST.json")) or moment[0] in ("setup", "before_fit")
    assert in_child(lambda: life(tmp_path)) == 0
    assert (tmp_path / "outcome").read_text() == "finished -21.0"


@pytest.mark.parametrize("moment", [("after_batch", 2), ("before_evaluation_batch", 4)])
def test_ctrl_c_in_a_terminal_leaves_the_workers_what_they_have_to_do(tmp_path, moment):
    assert in_child(lambda: life(tmp_path, signal.SIGINT, moment)) == 0
    assert (tmp_path / "outcome").read_text() == "interrupted -6.0"
    assert in_child(lambda: life(tmp_path)) == 0
    assert (tmp_path / "outcome").read_text() == "finished -21.0"


def test_loaders_are_given_back_as_they_were():
    kept = []
    loader = DataLoader(torch.arange(1.0, 4.0), 1, num_workers=1, worker_init_fn=kept.append)
    users = loader.worker_init_fn
    assert Trainer([*BARE, "interrupt"]).fit(Probe(), loader).global_step == 3
    assert loader.worker_init_fn == users


def test_an_error_does_not_swallow_the_signal():
    class Failing(Plugin):
        name = "failing_for_test"

        @hookimpl
        def after_batch(self, loop):
            if loop.stop_reason:
                raise RuntimeError("of the user")

    with pytest.raises(Terminated) as ended:
        Trainer([*BARE, Failing()]).fit(Signalled("SIGTERM"), probe_batches(5))
    assert str(ended.value.__cause__) == "of the user"


def test_a_process_that_waits_for_others_to_begin_ends_by_the_signal():
    reading, writing = os.pipe()
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    class Begins(Plugin):
        name = "begins_for_test"
        before = ("strategy",)

        @hookimpl
        def setup(self):
            os.write(writing, b".")

    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
        try:
            Trainer([Begins()], strategy="ddp").fit(Probe(), probe_batches(1))
        finally:
            os._exit(1)
    os.read(reading, 1)
    time.sleep(0.5)  # it is in the call that waits by now; where it is not, it ends as well
    os.kill(pid, signal.SIGTERM)
    for _ in range(600):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    os.close(reading), os.close(writing)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_a_user_who_handles_the_signal_ends_the_process_or_not():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        result = Trainer(BARE).fit(Signalled("SIGTERM"), probe_batches(5))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.status, result.global_step, seen) == ("interrupted", 3, [signal.SIGTERM])


def test_which_signals_is_an_option():
    with pytest.raises(Terminated) as ended:
        Trainer(BARE, end_on_signals=["SIGUSR2"]).fit(Signalled("SIGUSR2"), probe_batches(5))
    assert ended.value.number == signal.SIGUSR2
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        assert Trainer(BARE, end_on_signals=()).fit(Signalled("SIGTERM"), probe_batches(5)).status == "finished"
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(ValueError, match=r"end_on_signals \(signals.listed\) must be names of signals"):
        Signals(listed=["TERM"])
