"""Every accelerator that can be run here passes the contract."""

import pytest

from lightloop.testing.accelerators import AcceleratorContract

pytestmark = pytest.mark.processes


class TestCpu(AcceleratorContract):
    options = {"accelerator": "cpu"}
    tolerance = 0.0


class TestDdp(AcceleratorContract):
    options = {"strategy": "ddp", "ddp_timeout": 30.0}
    ranks = 2
