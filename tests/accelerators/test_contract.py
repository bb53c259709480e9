"""Every accelerator that can be run here passes the contract."""

import pytest

from lightloop.testing.accelerators import AcceleratorContract
from lightloop.testing.step_gradients import GradientContract

pytestmark = pytest.mark.processes


class TestCpu(AcceleratorContract):
    options = {"accelerator": "cpu"}
    tolerance = 0.0
    sample = 5


class TestDdp(AcceleratorContract):
    options = {"strategy": "ddp", "ddp_timeout": 60.0}
    ranks = 2
    sample = 5


class TestFsdp(AcceleratorContract):
    options = {"strategy": "fsdp", "fsdp_min_size": 100, "fsdp_timeout": 60.0}
    ranks = 2
    sample = 5


@pytest.mark.torture
class TestEveryStepOfOneProcess(GradientContract):
    options = {"strategy": False}
    tolerance = 0.0


@pytest.mark.torture
class TestEveryStepOfDdp(GradientContract):
    options = TestDdp.options
    ranks = 2


@pytest.mark.torture
class TestEveryStepOfFsdp(GradientContract):
    options = {"strategy": "fsdp", "fsdp_min_size": 10, "fsdp_timeout": 60.0}
    ranks = 2
