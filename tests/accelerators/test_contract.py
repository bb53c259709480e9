"""Every accelerator that can be run here passes the contract."""

import pytest

from lightloop.testing.accelerators import AcceleratorContract

pytestmark = pytest.mark.processes


class TestCpu(AcceleratorContract):
    options = {"accelerator": "cpu"}
    tolerance = 0.0


class TestDdp(AcceleratorContract):
    options = {"strategy": "ddp", "ddp_timeout": 60.0}
    ranks = 2


class TestFsdp(AcceleratorContract):
    options = {"strategy": "fsdp", "fsdp_min_size": 100, "fsdp_timeout": 60.0}
    ranks = 2
