"""Every accelerator that can be run here passes the contract."""

import pytest

from lightloop import PluginError, Trainer
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

    def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(self):
        with pytest.raises(PluginError, match="'fsdp' and 'checkpoint' cannot both be live"):
            Trainer(strategy="fsdp")
