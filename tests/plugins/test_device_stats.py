import sys

import pytest
import torch

from lightloop import Trainer
from lightloop.testing import Probe, Rows, probe_batches
from lightloop_plugins.device_stats import device_memory, host_memory

BARE = ["-*", "log_every", "device_stats"]


def test_the_memory_of_the_process_is_in_the_rows():
    rows = Rows()
    Trainer([*BARE, rows], log_device_stats=4, log_every_n_steps=2).fit(Probe(), probe_batches(8))
    assert [(step, sorted(row)) for step, row in rows.rows] == [(step, ["epoch", "memory/host"]) for step in (1, 4, 8)]
    assert all(10 < row["memory/host"] < 1e6 for _, row in rows.rows)


def test_it_grows_by_what_is_allocated():
    before = host_memory()
    held = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert host_memory() - before > 0.9 * held.numel()


def test_without_psutil_the_peak_is_known(monkeypatch):
    now = host_memory()
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert host_memory() > now / 2


def test_the_cpu_has_no_device_memory():
    assert device_memory(torch.device("cpu")) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_memory():
    device = torch.device("cuda", torch.cuda.current_device())
    before = device_memory(device)
    held = torch.ones(2**20, dtype=torch.uint8, device=device)
    after = device_memory(device)
    assert after["memory/allocated"] - before["memory/allocated"] == held.numel()
    assert after["memory/peak"] >= after["memory/allocated"]
    assert after["memory/reserved"] >= after["memory/allocated"]


@pytest.mark.parametrize("old", ["all", "min_max"])
def test_the_old_name(old):
    with pytest.warns(DeprecationWarning, match="log_device_stats"):
        assert Trainer(log_gpu_memory=old).log_device_stats == 50
    with pytest.warns(DeprecationWarning, match="log_device_stats"):
        assert Trainer(log_gpu_memory=None).plugin("device_stats") is None
