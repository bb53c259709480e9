"""One device of XLA, whose programs run on the CPU here."""

import os
import pickle
import warnings

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.utils.data import DataLoader

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from tests.xla.rig import InThisProcess, counted

pytestmark = pytest.mark.xla
XLA = {"accelerator": "xla"}


class TestXla(InThisProcess):
    options = XLA


def device_of(trainer):
    return next(plugin for plugin in trainer.plugins if plugin.name == "xla")


class Dropped(TinyClassifier):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class AtBatchEnd(Plugin):
    """At the end of each batch: how many programs were ended by then, and the loss if it is to be read."""

    name = "at_batch_end"

    def __init__(self, read):
        self.read = read
        self.ended = []
        self.losses = []

    @hookimpl
    def after_batch(self, loop):
        self.ended.append(next(plugin for plugin in loop.plugins if plugin.name == "xla").syncs)
        loss = loop.metrics.latest["loss"]
        self.losses.append(loss.item() if self.read else loss)


@pytest.mark.parametrize("read", [False, True])
def test_c91_one_program_for_each_batch_ended_before_the_batch_end_hooks(read):
    watch, module = AtBatchEnd(read), TinyClassifier()
    trainer = Trainer(["-*", watch], **XLA, accumulate_grad_batches=8, gradient_clip_val=1.0)
    batches = classification_batches(16)
    trainer.fit(module, batches)  # warm up
    watch.ended.clear()
    with counted() as counts:
        trainer.fit(module, batches)
    assert watch.ended == list(range(1, 17))
    assert device_of(trainer).syncs == 17  # the last one is the epoch's, and has nothing to do
    assert counts.executed <= 16 + 2  # beside the batches': moving the first seeds, and the end of the epoch
    assert counts.compiled <= 1
    assert counts.read == (16 if read else 0)
    assert counts.copied == counts.read + 1  # the metrics of the result, all at once


def test_c91_what_is_compiled_stays_the_same_however_long_the_run():
    counts = []
    for epochs in (2, 6):
        trainer = Trainer(
            ["-*", AtBatchEnd(False)], **XLA, max_epochs=epochs, accumulate_grad_batches=8, gradient_clip_val=1.0
        )
        with counted() as seen:
            trainer.fit(Dropped(), classification_batches(18))  # windows of 8, 8 and 2
        counts.append((seen.compiled, device_of(trainer).compilations))
    assert counts[0][0] > 0
    assert counts[1] == (0, 0)  # the second run compiles nothing that the first had not


@pytest.mark.parametrize("pieces", [1, 3])
def test_each_piece_of_a_batch_is_a_program(pieces):
    class Cut(Plugin):
        name = "cut"

        @hookimpl
        def split_batch(self, loop):
            return [loop.batch] * pieces

    trainer = Trainer(["-*", Cut], **XLA)
    trainer.fit(TinyClassifier(), classification_batches(4))
    assert device_of(trainer).syncs == 4 * pieces + 1


def test_batches_of_ever_new_shapes_are_named():
    batches = [(torch.ones(size, 4), torch.zeros(size, dtype=torch.int64)) for size in (8, 8, 8, 8, 9, 10, 11, 12)]
    with pytest.warns(
        UserWarning, match=r"xla: 3 batches had shapes .*: \(9, 4\), \(9,\); \(10, 4\), \(10,\); \(11, 4\)"
    ):
        Trainer(["-*"], **XLA, xla_shapes=3).fit(TinyClassifier(), batches)
    with warnings.catch_warnings():  # the last batch of each epoch may be smaller
        warnings.simplefilter("error")
        Trainer(["-*"], **XLA, xla_shapes=2, max_epochs=3).fit(TinyClassifier(), batches[:5])


def trained(seed, **options):
    torch.manual_seed(seed)
    module = Dropped()
    Trainer(["-*", "validation"], **XLA, **options).fit(module, classification_batches(4), options.pop("val", None))
    return [parameter.cpu() for parameter in module.parameters()]


def test_a_seed_of_torch_seeds_the_device():
    assert all(map(torch.equal, trained(1), trained(1)))
    assert not all(map(torch.equal, trained(1), trained(2)))


class DrawsInEvaluation(Dropped):
    def validation_step(self, batch, batch_idx):
        self.log("noise", torch.rand(3, device=batch[0].device).sum())


@pytest.mark.parametrize("evaluates", [True, False])
def test_evaluation_leaves_the_random_numbers_of_the_device_alone(evaluates):
    torch.manual_seed(0)
    module = DrawsInEvaluation()
    val = classification_batches(3) if evaluates else None
    Trainer(["-*", "validation"], **XLA, max_epochs=3).fit(module, classification_batches(4), val)
    found = [parameter.cpu() for parameter in module.parameters()]
    torch.manual_seed(0)
    plain = DrawsInEvaluation()
    Trainer(["-*"], **XLA, max_epochs=3).fit(plain, classification_batches(4))
    assert all(torch.equal(one, other.cpu()) for one, other in zip(found, plain.parameters(), strict=True))


class StopAt(Plugin):
    name = "stop_at"

    def __init__(self, step):
        self.step = step

    @hookimpl
    def after_step(self, loop):
        if loop.global_step == self.step:
            loop.stop("far enough")


def test_a_resumed_run_draws_on_and_what_was_saved_is_on_the_cpu(tmp_path):
    def fit(plugins, **options):
        torch.manual_seed(3)
        module = Dropped()
        samples = [sample for batch in classification_batches(8) for sample in zip(*batch, strict=True)]
        data = DataLoader(samples, 8)
        trainer = Trainer(["-*", "checkpoint", "run_dir", *plugins], **XLA, checkpoint_dir=str(tmp_path), **options)
        trainer.fit(module, data)
        return module, trainer

    whole, _ = fit([StopAt(0)], enable_checkpointing=False)
    fit([StopAt(3)], save_every=None)
    from safetensors.torch import load_file

    files = [load_file(file) for file in tmp_path.rglob("*.safetensors")]
    assert files
    assert all(tensor.device.type == "cpu" for file in files for tensor in file.values())
    resumed, trainer = fit([StopAt(0)], resume=str(tmp_path), save_every=None)
    assert trainer.loop.global_step == 8
    assert all(map(torch.equal, map(on_cpu, whole.parameters()), map(on_cpu, resumed.parameters())))
    state = trainer.loop.optimizers[0].state
    assert {value["exp_avg"].device.type for value in state.values()} == {"xla"}


def on_cpu(tensor):
    return tensor.detach().cpu()


def test_evaluation_and_prediction_run_on_the_device():
    module, data = TinyClassifier(), classification_batches(3)
    trainer = Trainer(["-*"], **XLA)
    on_device = trainer.validate(module, data)
    assert next(module.parameters()).device.type == "xla"
    assert device_of(trainer).syncs == 3
    predictions = trainer.predict(module, [x for x, _ in data])
    assert {part.device.type for part in predictions} == {"xla"}
    plain = Trainer(["-*"], accelerator="cpu").validate(module.cpu(), data)
    assert on_device["val_loss"] == pytest.approx(plain["val_loss"], abs=1e-6)


def test_bfloat16_by_autocast():
    seen = []

    class Look(TinyClassifier):
        def training_step(self, batch, batch_idx):
            seen.append(self(batch[0]).dtype)
            return super().training_step(batch, batch_idx)

    module = Look()
    Trainer(["-*"], **XLA, precision="bf16-mixed").fit(module, classification_batches(2))
    assert seen == [torch.bfloat16] * 2
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


class Tied(Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.other.weight = self.one.weight

    def training_step(self, batch):
        return self.other(self.one(batch)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_shared_parameters_stay_shared():
    module = Tied()
    Trainer(["-*"], **XLA).fit(module, [torch.ones(2, 3)])
    assert module.one.weight is module.other.weight
    assert module.one.weight.device.type == "xla"


def test_processes_that_would_reduce_nothing_are_refused(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        RuntimeError, match="torchrun has started 2 processes, and to XLA each is alone: their gradients would"
    ):
        Trainer(["-*"], **XLA).fit(Probe(), probe_batches(1))


def test_several_devices_without_a_strategy_for_them_are_refused():
    with pytest.raises(
        ValueError, match=r"torch.distributed knows none for 'xla', which may have a strategy of its own"
    ):
        Trainer(["-*"], **XLA, strategy="ddp", devices=2).fit(Probe(), probe_batches(1))


def test_torch_xla_seeds_itself_if_asked_and_not_by_the_host():
    torch_xla.manual_seed(7)
    before = xm.get_rng_state()
    torch.rand(3)
    assert xm.get_rng_state() == before
    torch.rand(3, device="xla")
    assert xm.get_rng_state() != before


def test_the_plugin_pickles_before_and_after_a_run():
    trainer = Trainer(["-*"], **XLA)
    trainer.fit(TinyClassifier(), classification_batches(2))
    assert pickle.loads(pickle.dumps(device_of(trainer))).syncs == 3
    assert device_of(trainer).state_dict() == {}
    with pytest.raises(ValueError, match=r"xla_shapes \(xla.shapes\) must be a whole number from 1"):
        Trainer(**XLA, xla_shapes=0)
    assert os.environ["PJRT_DEVICE"] == "CPU"
