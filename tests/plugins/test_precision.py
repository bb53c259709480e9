import dataclasses
import pickle
import warnings

import pytest
import torch
from torch import nn

import lightloop
from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches

DATA = classification_batches(7)


def tiny():
    torch.manual_seed(0)
    return TinyClassifier()


def assert_equal(one, other):
    for left, right in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)


def by_hand(model, accumulate=1, dtype=None, scaler=None, clip=None):
    """A plain loop in the manner of torch's AMP recipe."""
    optimizer = model.configure_optimizers()
    for start in range(0, len(DATA), accumulate):
        window = DATA[start : start + accumulate]
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = nn.functional.cross_entropy(model(x), y)
            (loss if scaler is None else scaler.scale(loss)).backward(torch.tensor(1 / len(window)))
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return model


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-mixed", torch.bfloat16), ("bf16", torch.bfloat16), ("16-mixed", torch.float16), (16, torch.float16)],
)
def test_mixed_equals_torchs_recipe_bit_for_bit(precision, dtype, accumulate, clip):
    scaler = torch.amp.GradScaler("cpu") if dtype == torch.float16 else None
    module = tiny()
    Trainer(["-*"], precision=precision, accumulate_grad_batches=accumulate, gradient_clip_val=clip).fit(module, DATA)
    assert_equal(module, by_hand(tiny(), accumulate, dtype, scaler, clip))
    assert not torch.equal(module.net[0].weight, by_hand(tiny(), accumulate, clip=clip).net[0].weight)


@pytest.mark.parametrize("growth_interval", [2, 2000])
def test_a_scale_that_overflows_backs_off_as_torchs_does(growth_interval):
    how = {"precision_init_scale": 2.0**20, "precision_growth_interval": growth_interval}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=growth_interval)
    module = tiny()
    trainer = Trainer(["-*"], precision="16-mixed", **how)
    trainer.fit(module, DATA)
    assert_equal(module, by_hand(tiny(), 1, torch.float16, scaler))
    (plugin,) = trainer.plugins
    assert plugin.state_dict() == {"scalers": [scaler.state_dict()], "scaled": []}
    assert scaler.state_dict()["scale"] != 2.0**20
    skipped = trainer.loop.skipped_steps
    assert skipped > 0
    assert trainer.loop.global_step == len(DATA) - skipped


class Order(Plugin):
    """Writes down what the scaler, torch's clipping and the optimizer do."""

    name = "order"
    after = ("precision",)

    def validate(self):
        self.events = []

    @hookimpl
    def before_fit(self, loop):
        scaler = next(plugin for plugin in loop.plugins if plugin.name == "precision").scalers[0]
        for name in ("scale", "unscale_", "update"):
            self.watch(scaler, name)
        self.watch(loop.optimizer, "step")

    @hookimpl(wrapper=True)
    def grad_norm(self, loop, norm_type):
        self.events.append("norm")
        return (yield)

    def watch(self, owner, name):
        method = getattr(owner, name)

        def watched(*args, **kwargs):
            self.events.append(name.strip("_"))
            return method(*args, **kwargs)

        setattr(owner, name, watched)


@pytest.fixture
def clips(monkeypatch):
    def watch(order):
        def clip_norm_(*given):
            order.events.append("clip")
            return lightloop.toolkit.clip_norm_(*given)

        monkeypatch.setattr("lightloop_plugins.clip.clip_norm_", clip_norm_)

    return watch


EVERYTHING = {"precision": "16-mixed", "gradient_clip_val": 1.0, "track_grad_norm": 2, "nonfinite": "skip_step"}


def test_c9_unscaled_once_however_many_ask(clips):
    order = Order()
    clips(order)
    result = Trainer(["-*", order], **EVERYTHING, accumulate_grad_batches=2).fit(Probe(), probe_batches(4))
    window = ["scale", "scale", "unscale", "norm", "clip", "step", "update"]
    assert order.events == window * 2
    assert result.global_step == 2


@pytest.mark.parametrize("place", ["before", "after"])
def test_c9_a_vetoed_step_still_updates_and_drops_the_gradients(clips, place):
    class Veto(Plugin):
        name = "veto"

        @hookimpl
        def before_step(self, loop):
            if loop.batch_idx == 1:
                loop.skip_step("the first")

        @hookimpl
        def after_batch(self, loop):
            if loop.batch_idx == 1:
                assert loop.module.w.grad is None

    setattr(Veto, place, ("precision",))
    order, module = Order(), Probe()
    clips(order)
    result = Trainer(["-*", order, Veto()], **EVERYTHING, accumulate_grad_batches=2).fit(module, probe_batches(4))
    assert order.events == [
        *["scale", "scale", "unscale", "norm", "clip", "update"],
        *["scale", "scale", "unscale", "norm", "clip", "step", "update"],
    ]
    assert result.global_step == 1
    assert module.w.item() == pytest.approx(-1.0)  # the mean of 3 and 4, clipped to 1


def test_an_overflow_is_not_counted_and_nobodys_event():
    class Schedule(Probe):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def training_step(self, batch):
            return (batch.half() * self.w.half()).float() if batch == 2 else batch * self.w

    module = Schedule()
    plugins = ["-*", "lr_schedule"]
    trainer = Trainer(plugins, precision="16-mixed", terminate_on_nan=True, precision_init_scale=2.0**15)
    result = trainer.fit(module, probe_batches(3))
    assert (result.global_step, trainer.loop.skipped_steps) == (2, 1)
    assert trainer.loop.skip_step_reason is None
    assert module.w.item() == -(1 + 3 / 2)  # the schedule stood still for the skipped step
    (plugin,) = [plugin for plugin in trainer.plugins if plugin.name == "precision"]
    assert plugin.scalers[0].get_scale() == 2.0**14


def test_the_reason_says_at_what_scale():
    reasons = []

    class Reasons(Plugin):
        name = "reasons"

        @hookimpl
        def on_step_skipped(self, loop):
            reasons.append(loop.skip_step_reason)

    class Half(Probe):
        def training_step(self, batch):
            return (batch.half() * self.w.half()).float()

    Trainer(["-*", Reasons()], precision="16-mixed").fit(Half(), [torch.tensor(1.0)])
    assert reasons == ["gradients overflowed in float16, the loss multiplied by 65536"]


def test_each_optimizer_has_a_scale_of_its_own():
    """With one scale for both, the second window's gradients would be of two scales after the first one's update."""

    class Two(Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

        def training_step(self, batch, optimizer_idx):
            return batch * (self.a if optimizer_idx == 0 else self.b)

        def configure_optimizers(self):
            return [torch.optim.SGD([self.a], lr=1.0), torch.optim.SGD([self.b], lr=1.0)]

    module = Two()
    trainer = Trainer(["-*"], precision="16-mixed", precision_growth_interval=1, accumulate_grad_batches=2)
    trainer.fit(module, probe_batches(8))
    assert module.a.item() == module.b.item() == -(1.5 + 3.5 + 5.5 + 7.5)
    assert [scaler.get_scale() for scaler in trainer.plugins[-1].scalers] == [2.0**20, 2.0**20]


@pytest.mark.parametrize(
    ("precision", "dtype"), [(64, torch.float64), ("64-true", torch.float64), ("bf16-true", torch.bfloat16)]
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_whole_equals_a_converted_module_bit_for_bit(precision, dtype, accumulate):
    module = tiny()
    Trainer(["-*"], precision=precision, accumulate_grad_batches=accumulate).fit(module, DATA)
    plain = tiny().to(dtype)
    optimizer = plain.configure_optimizers()
    for start in range(0, len(DATA), accumulate):
        window = DATA[start : start + accumulate]
        optimizer.zero_grad()
        for x, y in window:
            loss = nn.functional.cross_entropy(plain(x.to(dtype)), y)
            loss.backward(torch.tensor(1 / len(window), dtype=dtype))
        optimizer.step()
    assert_equal(module, plain)


class Types(Module):
    """Writes down the types that it computes with."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))
        self.types = []

    def training_step(self, batch):
        x, packed = batch["x"], batch["packed"]
        y = self.net(x)
        self.types.append([y.dtype, torch.zeros(1).dtype, packed.data.dtype, batch["index"].dtype])
        return y.float().sum()

    def validation_step(self, batch):
        self.training_step(batch)

    def predict_step(self, batch):
        self.training_step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def typed_batch():
    packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    return {"x": torch.ones(1, 2), "packed": packed, "index": torch.tensor([1])}


@pytest.mark.parametrize(
    ("precision", "computed", "default"),
    [
        (64, torch.float64, torch.float64),
        ("16-true", torch.float16, torch.float16),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("bf16-mixed", torch.bfloat16, torch.float32),
        ("16-mixed", torch.float16, torch.float32),
    ],
)
def test_training_evaluation_and_prediction_compute_in_the_type(precision, computed, default):
    module, trainer = Types(), Trainer(["-*"], precision=precision)
    trainer.fit(module, [typed_batch()])
    trainer.validate(module, [typed_batch()])
    trainer.predict(module, [typed_batch()])
    packed = torch.float32 if "mixed" in str(precision) else computed
    assert module.types == [[computed, default, packed, torch.int64]] * 3
    assert module.net.weight.dtype == default  # and it stays so
    assert module.counts.dtype == torch.int64
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_whole_casts_whatever_a_batch_is_nested_in():
    @dataclasses.dataclass
    class Record:
        x: torch.Tensor
        label: torch.Tensor

    class Own(dict):
        pass

    got = []

    class Looking(Probe):
        def training_step(self, batch):
            got.append(batch)
            return self.w * 1.0

    x, label = torch.ones(2), torch.ones(2, dtype=torch.long)
    Trainer(["-*"], precision=64).fit(Looking(), [Record(x, label), Own(x=[x], label=label), (x, None, "text")])
    record, own, (plain, *rest) = got
    assert [type(record), type(own), rest] == [Record, Own, [None, "text"]]
    assert [each.dtype for each in (record.x, own["x"][0], plain)] == [torch.float64] * 3
    assert [record.label.dtype, own["label"].dtype] == [torch.long] * 2


@pytest.mark.parametrize("precision", [64, "bf16-mixed"])
def test_what_is_process_wide_is_put_back_after_an_error(precision):
    class Broken(Probe):
        def training_step(self, batch):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(["-*"], precision=precision).fit(Broken(), probe_batches())
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", [32, "32", "32-true"])
def test_32_is_nothing_at_all(precision):
    module = tiny()
    Trainer(["-*"], precision=precision).fit(module, DATA)
    assert_equal(module, by_hand(tiny()))


def test_an_optimizer_that_computes_gradients_itself_has_no_scaler():
    class Second(Probe):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(ValueError, match="precision='16-mixed' cannot be had with LBFGS"):
        Trainer(["-*"], precision="16-mixed").fit(Second(), probe_batches())
    Trainer(["-*"], precision="bf16-mixed").fit(Second(), probe_batches(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there CUDA's autocast and scaler are what they say")
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_refused_where_torch_would_silently_turn_it_off(precision):
    class Elsewhere(Probe):
        """A module without parameters here, whose device plugin says cuda."""

        def parameters(self, recurse=True):
            return iter(())

    class Liar(Plugin):
        name = "liar"
        group = "accelerator"

        @hookimpl
        def setup(self, loop):
            loop.device = torch.device("cuda")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="must be 32 or 64 on 'cuda', for which this torch has no autocast"):
            Trainer(["-*", Liar()], precision=precision).fit(Elsewhere(), probe_batches())


def test_half_parameters_need_16_true():
    with pytest.raises(ValueError, match="'16-true' for parameters that are float16 already, such as w"):
        Trainer(["-*"], precision="16-mixed").fit(Probe().half(), probe_batches())


def test_the_scalers_survive_a_restart_and_a_new_fit_starts_clean():
    trainer = Trainer(["-*"], precision="16-mixed", precision_growth_interval=3)
    trainer.fit(Probe(), probe_batches(4))
    (plugin,) = trainer.plugins
    state = plugin.state_dict()
    assert (state["scalers"][0]["scale"], state["scalers"][0]["_growth_tracker"]) == (2.0**17, 1)
    other = pickle.loads(pickle.dumps(trainer))

    class Resume(Plugin):
        name = "resume"
        after = ("precision",)

        @hookimpl
        def before_fit(self, loop):
            other.plugins[0].load_state_dict(state)

    resumed = Trainer(["-*", other.plugins[0], Resume()])
    resumed.fit(Probe(), probe_batches(2))
    assert other.plugins[0].state_dict()["scalers"][0]["scale"] == 2.0**18
    trainer.fit(Probe(), probe_batches(1))
    assert plugin.state_dict()["scalers"][0]["_growth_tracker"] == 1
    assert plugin.state_dict()["scalers"][0]["scale"] == 2.0**16


def test_old_names():
    with pytest.warns(DeprecationWarning, match="'use_amp' is now called 'precision'"):
        trainer = Trainer(["-*"], use_amp=True)
    assert [plugin.mode for plugin in trainer.plugins] == ["16-mixed"]
    with pytest.warns(DeprecationWarning, match="use_amp"):
        assert Trainer(["-*"], use_amp=False).plugins == []
    with pytest.raises(TypeError, match="'precision' and 'use_amp' are one option"):
        Trainer(precision=16, use_amp=True)
    with pytest.raises(ValueError, match=r"amp_level .* apex is gone: O1 is precision='16-mixed'"):
        Trainer(precision=16, amp_level="O1")


@pytest.mark.parametrize("precision", [8, 0, "16-bit", "", "mixed"])
def test_nonsense_is_refused_at_construction(precision):
    with pytest.raises(ValueError, match=r"precision \(precision.precision\) must be 32, 16, '64', '16-true'"):
        Trainer(precision=precision)


def test_manual_optimization_scales_what_it_is_given():
    class Manual(Probe):
        automatic_optimization = False

        def training_step(self, batch, manual):
            manual.backward(batch * self.w)
            manual.step()

    order, module = Order(), Manual()
    plugins = ["-*", "manual_optimization", order]
    Trainer(plugins, precision="16-mixed", gradient_clip_val=1.5).fit(module, probe_batches(3))
    assert order.events == ["scale", "unscale", "norm", "step", "update"] * 3
    assert module.w.item() == pytest.approx(-(1 + 1.5 + 1.5))


def test_manual_optimization_that_goes_backward_by_itself_is_not_unscaled():
    class Past(Probe):
        automatic_optimization = False

        def training_step(self, batch, manual):
            if batch == 2:
                manual.backward(batch * self.w)
            else:
                (batch * self.w).backward()
            self.loop.optimizers[0].step()
            self.loop.optimizers[0].zero_grad()

    module = Past()
    Trainer(["-*", "manual_optimization"], precision="16-mixed").fit(module, probe_batches(3))
    assert module.w.item() == -6.0


def test_a_loss_is_logged_unscaled():
    class Logged(Probe):
        def training_step(self, batch):
            loss = batch * (self.w + 1)
            self.log("loss", loss)
            return loss

    seen = []

    class Seen(Plugin):
        name = "seen"

        @hookimpl
        def after_backward(self, loop):
            seen.append(loop.loss.item())

    result = Trainer(["-*", Seen()], precision="16-mixed").fit(Logged(), probe_batches(1))
    assert result.metrics == {"loss": 1.0}
    assert seen == [1.0]


class Sequences(nn.Module):
    """An LSTM and a layer that oneDNN computes on every processor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.LSTM(3, 4, num_layers=2, batch_first=True), nn.Linear(4, 1)

    def training_step(self, batch):
        return self.head(self.rnn(batch)[0]).square().mean()

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "options", [{"precision": "bf16-mixed"}, {"precision": "16-mixed", "precision_init_scale": 4.0}]
)
def test_an_lstm_trains_on_every_processor_and_nothing_of_it_stays_behind(options):
    batches = [torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    trained, plain, trainer = Sequences(), Sequences(), Trainer(**options)
    before = torch.get_rng_state()
    assert trainer.fit(trained, batches).global_step == 3
    assert torch.equal(torch.get_rng_state(), before)  # finding out draws nothing
    trainer.validate(trained, batches)
    Trainer().fit(plain, batches)
    for one, other in zip(trained.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.01)
    assert torch.backends.mkldnn.enabled
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in trained.modules())


def test_an_lstm_that_fails_leaves_onednn_switched_on():
    class Wrong(Sequences):
        def training_step(self, batch):
            return self.rnn(batch[..., :2])[0].mean()

    with pytest.raises(RuntimeError, match=r"input\.size"):
        Trainer(precision="bf16-mixed").fit(Wrong(), [torch.randn(2, 5, 3)])
    assert torch.backends.mkldnn.enabled
