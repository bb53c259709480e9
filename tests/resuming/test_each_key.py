"""Each key of what is saved is needed: a run that is resumed without one is refused, or it differs.

A key of a plugin's state is as it would be if ``state_dict`` forgot it: in the resumed run it is as in one that begins. ``make test`` tries a sample, ``make torture`` each.
"""

import shutil
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from lightloop import Callback, Plugin
from lightloop.testing.resuming import END, OVER, Report, Resuming, named
from lightloop.testing.snapshots import differing
from lightloop_plugins.checkpoint.errors import CheckpointError
from tests.resuming.rig import resuming
from tests.testing.test_every_option import KINDS


class Lacking(Resuming):
    """Resumes with something that is not as it was saved, and sees whether it is noticed before the next boundary."""

    def whole(self):
        """The run that is not stopped, with its files at each boundary; the state of each plugin that has one."""
        made = []
        make, self.trainer = self.trainer, lambda *given: made.append(make(*given)) or made[-1]
        self.there = self.live("whole", Report(), copies=True)
        self.boundaries = [each for each in self.there if each != END]
        if self.there[self.boundaries[-1]]["batch_idx"] != "0":
            self.boundaries.pop()  # stopped inside an epoch; resumed, it may go on
        return {plugin.name: plugin for plugin in made[0].loop.plugins}

    def notices(self, lacks):
        """The first boundary from which the run that lacks something is refused or differs, and in what; None if none."""
        for here, then in zip(self.boundaries, [*self.boundaries[1:], None], strict=True):
            shutil.rmtree(self.folder / "try", ignore_errors=True)
            shutil.copytree(self.folder / "at" / named(here), self.folder / "try")
            try:
                with lacks():
                    life = self.live("try", Report(), resume=True, kill=then)
            except (CheckpointError, LookupError) as refused:
                return here, refused
            apart = (*self.unsteady, *(OVER if then is None else ("files.*", "batch")))
            for number, state in life.items():
                if found := differing(self.there[number], state, apart):
                    return here, found[0]
        return None


class Told(Callback):
    """Counts its batches, and keeps the number."""

    def __init__(self):
        self.count = 0

    def on_train_batch_end(self, loop):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


STOP = {"early_stop_callback": True, "early_stopping_patience": 1, "min_epochs": 3}
INFINITE = ("Infinite", {"nonfinite": "skip_step", "accumulate_grad_batches": 3})
NAN = (
    "NanGradients",
    {"nonfinite": "rewind", "nonfinite_keep_every": 2, "accumulate_grad_batches": 2, "precision": "16-mixed"},
)
BEST = (
    "Net",
    {"monitor": "val_loss", "log_every_n_steps": 3, "val_check_interval": 3, "check_val_every_n_epoch": None},
)
AVERAGES = (
    "Net",
    {"swa_start": 0, "swa_lr": 0.05, "ema_decay": 0.9, "ema_every": 2, "max_epochs": 2, "logger": ["tensorboard"]},
)
RUNS = {
    "callbacks": [("Net", {"callbacks": Told()})],
    "checkpoint": [BEST],
    "csv": [BEST],
    "device_stats": [("Infinite", {**INFINITE[1], "log_device_stats": 2, "logger": False})],
    "early_stopping": [("Net", {**STOP, "early_stopping_monitor": "early"}), ("Net", {**STOP, "val_check_interval": 0.5}), ("Net", AVERAGES[1] | STOP)],
    "ema": [AVERAGES],
    "log_every": [INFINITE],
    "lr_schedule": [BEST],
    "nonfinite": [INFINITE, NAN],
    "nonfinite_async": [("NanGradients", {"nonfinite_async": "zero", "nonfinite_async_every": 2})],
    "optimizer_frequencies": [("InTurn", {"accumulate_grad_batches": 2})],
    "outputs": [("Outputs", {})],
    "precision": [NAN],
    "reload_data": [("Net", {"reload_dataloaders_every_n_epochs": 2, "max_epochs": 4})],
    "shared_parameters": [("Several", {"accumulate_grad_batches": 3})],
    "swa": [AVERAGES],
    "tensorboard": [AVERAGES],
    "validation": [INFINITE],
}  # fmt: skip
"""For each plugin runs, a module and options, in at least one of which each key of its state decides something."""
ELSEWHERE = {
    "callbacks.checkpoint": "is what on_save_checkpoint of the module writes: tests/plugins/test_callbacks.py",
    "checkpoint.every": "the machine saves at each boundary; tests/checkpoint/test_plugin.py has rhythms",
    "checkpoint.ranked_by": "tells of another monitor: tests/resuming/test_what_was_forgotten.py",
    "csv.last_step": "is in the file as well",
    "csv.size": "only spares the reading of rows: tests/plugins/test_csv.py",
    "run_dir.path": "the machine says where; tests/plugins/test_run_dir.py has it",
    "shard_data.seed": "is of several processes: tests/accelerators/test_ddp.py",
    "slurm.run": "is of a job of SLURM: tests/plugins/test_slurm.py",
    "split_on_oom.pieces": "needs memory to be short: tests/plugins/test_split_on_oom.py",
    "swa.trained": "is for a run that had ended and is to go on: tests/plugins/test_swa.py",
    "time_limit.spent": "is a time: tests/plugins/test_time_limit.py",
    "lightning_data.data": "is of data modules of Lightning: tests/plugins/test_lightning.py",
    "xla.random": "needs torch_xla: tests/xla",
    "xla_spmd.random": "needs torch_xla: tests/xla",
}  # fmt: skip
"""Keys for which the machine has no run, and why."""


@contextmanager
def forgotten(kind, key):
    """What ``state_dict`` gives lacks ``key``, and ``load_state_dict`` leaves it as a fit begins with."""
    load = kind.load_state_dict

    def forget(self, state):
        load(self, {**state, key: self.state_dict()[key]})

    with patch.object(kind, "load_state_dict", forget):
        yield


@contextmanager
def nothing():
    yield


def machine(folder, run, loader="list"):
    module, options = run
    made = resuming(folder, options, module=module, loader=loader, kind=Lacking)
    made.unsteady = (*made.unsteady, "*time_limit*")
    return made


SAMPLE = ["ema", "nonfinite_async"]
PLUGINS = [pytest.param(each, marks=() if each in SAMPLE else pytest.mark.torture) for each in RUNS]


@pytest.mark.parametrize("name", PLUGINS)
def test_each_key_of_a_plugins_state_is_missed_where_it_is_forgotten(name, tmp_path):
    open_ = None
    for number, run in enumerate(RUNS[name]):
        made = machine(tmp_path / str(number), run)
        plugin = made.whole()[name]
        assert made.notices(nothing) is None
        if open_ is None:
            open_ = [key for key in plugin.state_dict() if f"{name}.{key}" not in ELSEWHERE]
        open_ = [key for key in open_ if made.notices(lambda k=key, p=plugin: forgotten(type(p), k)) is None]
    assert open_ == []


def test_each_plugin_with_a_state_is_here_or_elsewhere():
    there = {*RUNS} | {each.split(".")[0] for each in ELSEWHERE}
    kinds = {name for name, kind in KINDS.items() if kind.state or kind.state_dict is not Plugin.state_dict}
    assert kinds - there == set()
