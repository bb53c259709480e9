"""Several processes beside every plugin that is live by default, and more."""

import os

import pytest
import torch
from torch.utils.data import DataLoader

from lightloop import Trainer
from lightloop.testing.accelerator_runs import Blocks, samples
from lightloop.testing.ranks import run_ranks, values_of

pytestmark = pytest.mark.processes

MORE = {
    "max_epochs": 2,
    "accumulate_grad_batches": 3,
    "gradient_clip_val": 1.0,
    "track_grad_norm": 2,
    "ema_decay": 0.9,
    "terminate_on_nan": True,
    "log_every_n_steps": 1,
    "seed": 3,
}


def everything(strategy, root, batch_size, precision):
    options = {"fsdp_min_size": 100} if strategy == "fsdp" else {}
    module = Blocks()
    trainer = Trainer(strategy=strategy, default_root_dir=root, precision=precision, **MORE, **options)
    result = trainer.fit(module, DataLoader(samples(60), batch_size), DataLoader(samples(11), batch_size))
    metrics = {name: result.metrics[name] for name in ("grad_norm", "grad_2.0_norm_head.weight", "val_loss", "seen")}
    files = [name for _, _, names in os.walk(root) for name in names]
    return result.global_step, module.state_dict(), metrics, files


@pytest.mark.parametrize("precision", [32, "bf16-mixed"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_of_it_comes_to_what_one_process_comes_to(tmp_path, strategy, precision):
    steps, weights, metrics, _ = everything(False, str(tmp_path / "one"), 6, precision)
    near = 1e-6 if precision == 32 else 1e-2
    assert steps == 8
    for found in values_of(run_ranks(everything, 2, strategy, str(tmp_path / "two"), 3, precision)):
        assert found[0] == steps
        torch.testing.assert_close(found[1], weights, rtol=0, atol=near)
        assert found[2] == pytest.approx(metrics, rel=10 * near)
        assert found[3].count("metrics.csv") == 1, "the main rank alone writes"
