"""All devices of this process, as many as CPU_NUM_DEVICES says."""

import os
import pickle

import pytest
import torch
import torch_xla
import torch_xla.runtime as xr

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches
from tests.xla.rig import InThisProcess, counted

pytestmark = pytest.mark.xla
DEVICES = int(os.environ.get("CPU_NUM_DEVICES", "0"))
SPMD = {"accelerator": "xla", "strategy": "xla_spmd"}
# The contract's batches of 3 cannot be divided; that they are computed whole is said once.
undivided = pytest.mark.filterwarnings("ignore:xla_spmd. a batch of . cannot be divided")


class Look(Plugin):
    """How the first batch, the parameters and the state of the optimizer are divided among the devices."""

    name = "look"

    def validate(self):
        self.batch = self.parameters = self.state = None

    @hookimpl
    def before_batch(self, loop):
        self.batch = self.batch or [spec(part) for part in loop.batch]

    @hookimpl
    def after_epoch(self, loop):
        self.parameters = [spec(parameter) for parameter in loop.module.parameters()]
        state = loop.optimizers[0].state
        self.state = [spec(state[each]["momentum_buffer"]) for each in loop.module.parameters()]


def spec(tensor):
    return torch_xla._XLAC._get_xla_sharding_spec(tensor)


class Momentum(TinyClassifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(look=(), **options):
    torch.manual_seed(0)
    module = Momentum()
    trainer = Trainer(["-*", *look], max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5, **options)
    result = trainer.fit(module, classification_batches(6, 8))
    return [parameter.detach().cpu() for parameter in module.parameters()], result, trainer


@undivided
class TestSpmd(InThisProcess):
    options = SPMD


@undivided
class TestSpmdSharded(InThisProcess):
    options = {**SPMD, "xla_spmd_shard_parameters": True}
    exact_resume = False  # what is loaded is divided anew, and XLA adds up in another order: 2e-8


def test_there_are_as_many_devices_as_were_asked_for():
    fit(**SPMD)
    assert (xr.is_spmd(), xr.global_runtime_device_count(), xr.process_count()) == (True, DEVICES, 1)


@pytest.mark.parametrize("shard", [False, True])
def test_the_batch_is_divided_and_the_result_is_that_of_one_process(shard):
    look = Look()
    found, result, trainer = fit([look], **SPMD, xla_spmd_shard_parameters=shard)
    expected, alone, _ = fit()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)
    assert result.global_step == alone.global_step == 6
    assert result.metrics["loss"] == pytest.approx(alone.metrics["loss"], abs=1e-5)
    assert trainer.loop.world.size == 1
    assert look.batch == [f"{{devices=[{DEVICES},1]{order()}}}", f"{{devices=[{DEVICES}]{order()}}}"]
    divided = [len(parameter) % DEVICES == 0 and shard for parameter in trainer.loop.module.parameters()]
    assert divided[:2] == [shard] * 2
    assert ["devices=" in each for each in look.parameters] == divided
    assert ["devices=" in each for each in look.state] == divided


def test_parameters_and_batches_may_be_of_float64():
    found, _, trainer = fit(**SPMD, precision=64)
    expected, *_ = fit(precision=64)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    assert trainer.loop.device.type == "xla"


def test_devices_may_say_how_many_there_are_and_nothing_else():
    for count in (DEVICES, "auto", -1):
        fit(**SPMD, devices=count)
    with pytest.raises(
        ValueError, match=f"devices and num_nodes ask for 3 devices, .* takes all {DEVICES} that XLA has"
    ):
        fit(**SPMD, devices=3)


def order():
    return ",".join(map(str, range(DEVICES)))


def test_batches_that_cannot_be_divided_are_computed_whole_and_it_is_said_once():
    torch.manual_seed(0)
    module, batches = TinyClassifier(), classification_batches(3, 5)
    with pytest.warns(UserWarning, match=f"a batch of 5 cannot be divided among {DEVICES} devices") as caught:
        Trainer(["-*"], **SPMD).fit(module, batches)
    assert len(caught) == 1
    torch.manual_seed(0)
    alone = TinyClassifier()
    Trainer(["-*"]).fit(alone, batches)
    for one, other in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=2e-6, rtol=0)


def test_a_second_run_compiles_nothing_and_reads_nothing():
    fit(**SPMD)
    with counted() as counts:
        fit(**SPMD)
    assert counts.compiled == 0
    assert counts.read == 0


def test_it_needs_the_device_and_pickles():
    from lightloop import PluginError

    with pytest.raises(PluginError, match="'xla_spmd' requires 'xla'"):
        Trainer(strategy="xla_spmd")
    _, _, trainer = fit(**SPMD)
    assert (
        pickle.loads(pickle.dumps(next(each for each in trainer.plugins if each.name == "xla_spmd"))).shard_parameters
        is False
    )
