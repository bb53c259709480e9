"""What one rank knows after a fit is known to all; metrics are united by key; unlike weights are never averaged."""

import os
import pathlib

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe
from lightloop.testing.ranks import run_ranks, values_of

pytestmark = pytest.mark.processes

OWN = {
    "callback_metrics",
    "progress_bar_dict",
    "log_rows",
    "shown",
    "number",
    "running_loss",
    "training_tqdm_dict",
    "loop",
}
"""What is the rank's own: numbers of its own steps, and the loop with its batches."""
OF_RANK = {"global_rank", "local_rank", "node_rank", "is_global_zero", "rank", "is_main"}


class Logs(Probe):
    """Ranks log other keys: even samples ``even``, odd ones ``odd``, whose smallest is the best."""

    def training_step(self, batch, batch_idx):
        self.log("even" if int(batch[0]) % 2 == 0 else "odd", batch[0].mean(), on_step=False, on_epoch=True)
        return self.w * batch[0].mean()

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        name = "even_val" if int(x[0]) % 2 == 0 else "odd_val"
        self.log(name, x.mean() + self.w, weight=1 + int(os.environ["RANK"]))

    def test_step(self, batch, batch_idx):
        self.log("w", self.w.detach())


def exposed(thing):
    """The public attributes of ``thing`` that are plain values."""
    found = {}
    for name in dir(thing):
        if name.startswith("_") or name in OWN | OF_RANK:
            continue
        try:
            value = getattr(thing, name)
        except Exception as error:
            value = f"{type(error).__name__}"
        if value is None or isinstance(value, (bool, int, float, str, pathlib.Path)):
            found[name] = str(value)
    return found


def loader():
    return DataLoader(TensorDataset(torch.arange(8.0)), 1)


def walk(folder, threaded):
    module = Logs()
    trainer = Trainer(
        ["-progress", "-model_summary", "ddp"],
        default_root_dir=folder,
        max_epochs=3,
        monitor="odd_val",
        monitor_mode="max",
        save_top_k=1,
        async_save=threaded,
        ddp_timeout=60.0,
        logger=True,
    )
    fitted = trainer.fit(module, loader(), loader())
    seen = {"trainer": exposed(trainer), "result": exposed(fitted), "metrics": dict(fitted.metrics)}
    seen |= {plugin.key: exposed(plugin) for plugin in trainer.plugins}
    best = trainer.plugin("checkpoint").best_path
    rows = pathlib.Path(trainer.run_dir, "metrics.csv").read_text().splitlines()[0]
    tested = Trainer(["-progress", "ddp"], default_root_dir=folder, ddp_timeout=60.0).test(
        Logs(), loader(), resume=best
    )
    return seen, best, rows, tested


@pytest.mark.parametrize("threaded", [False, True])
def test_ranks_agree_on_all_that_is_exposed(tmp_path, threaded):
    (seen, best, rows, tested), other = values_of(run_ranks(walk, 2, str(tmp_path), threaded))
    for name in seen:
        assert seen[name] == other[0][name], name
    assert best is not None
    assert best == other[1]
    assert best.endswith("step-000000004-batch-000000004")  # each step makes w, and so the metric, smaller
    assert {"even", "odd", "even_val", "odd_val"} <= seen["metrics"].keys()
    assert seen["metrics"]["even"] == 3.0
    assert seen["metrics"]["odd"] == 4.0
    assert all(name in rows for name in ("even_val", "odd_val"))
    assert tested == other[3]


class Loads(Plugin):
    """Gives rank 1 other weights when the ranks have been made alike, as a checkpoint that it alone has would."""

    name = "loads_for_test"
    after = ("strategy",)

    @hookimpl
    def setup(self, loop):
        with torch.no_grad():
            loop.module.w += loop.world.rank


def unlike():
    return Trainer(["-*", "ddp", "lockstep", Loads()], ddp_timeout=60.0).test(Logs(), loader())


def test_unlike_weights_are_an_error_and_not_an_average():
    for outcome in run_ranks(unlike, 2):
        assert "the weights of rank 1 are others than those of rank 0" in str(outcome.error)


def kinds():
    class Odd(Logs):
        def validation_step(self, batch, batch_idx):
            self.log("x", 1.0, reduce="max" if os.environ["RANK"] == "0" else "min")

    return Trainer(["-*", "ddp", "lockstep"], ddp_timeout=60.0).validate(Odd(), loader())


def test_one_metric_that_ranks_reduce_in_two_ways_is_an_error():
    for outcome in run_ranks(kinds, 2):
        assert "metric 'x' is logged with reduce='max' on some ranks and 'min' on others" in str(outcome.error)
