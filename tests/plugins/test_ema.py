import pickle

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightloop import Plugin, Trainer, evaluate, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop_plugins.ema import EMA


class Veto(Plugin):
    """Skips the steps of the batches that it was given."""

    name = "veto"

    def validate(self):
        self.batches = set()

    @hookimpl
    def before_step(self, loop):
        if loop.total_batches in self.batches:
            loop.skip_step("the test says so")


def trainer(*plugins, **options):
    return Trainer(["-*", *plugins], **options)


def classifier(seed=0):
    torch.manual_seed(seed)
    return TinyClassifier()


def averages(ema):
    return [ema.average[name] for name in ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")]


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_equals_torchs_averaged_model_bit_for_bit(factor):
    ema, data = EMA(decay=0.9), classification_batches(6)
    trainer(ema, accumulate_grad_batches=factor, max_epochs=2).fit(classifier(), data)
    plain = classifier()
    averaged, optimizer = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.9)), plain.configure_optimizers()
    for _ in range(2):
        for start in range(0, 6, factor):
            window = data[start : start + factor]
            optimizer.zero_grad()
            for x, y in window:
                (torch.nn.functional.cross_entropy(plain(x), y) / len(window)).backward()
            optimizer.step()
            averaged.update_parameters(plain)
    assert ema.updates == averaged.n_averaged
    for one, other in zip(averages(ema), averaged.module.parameters(), strict=True):
        assert torch.equal(one, other)


def by_hand(weights, decay=lambda n: 0.5):
    average = weights[0]
    for n, weight in enumerate(weights[1:], start=1):
        average = average + (weight - average) * (1 - decay(n))
    return average


def test_one_update_per_applied_step_and_none_for_a_skipped_one():
    ema, veto = EMA(decay=0.5), Veto()
    veto.batches = {1, 2}
    module = Probe()
    trainer(ema, veto).fit(module, probe_batches(5))
    assert ema.updates == 3
    assert ema.average["w"].item() == by_hand([-1.0, -5.0, -10.0])


def test_every_n_steps():
    ema = EMA(decay=0.5, every=2)
    trainer(ema, max_epochs=2).fit(Probe(), probe_batches(3))
    assert ema.updates == 3
    assert ema.average["w"].item() == by_hand([-3.0, -7.0, -12.0])


def test_a_window_that_the_end_of_the_epoch_closes_is_a_step():
    class cut(Plugin):
        name, before = "cut", ("accumulate",)

        @hookimpl
        def after_batch(self, loop):
            if loop.batch_idx == 2:
                loop.end_epoch("the test says so")

    ema = EMA(decay=0.5)
    result = trainer(ema, cut(), accumulate_grad_batches=2).fit(Probe(), probe_batches(4))
    assert ema.updates == result.global_step == 2
    assert ema.average["w"].item() == by_hand([-1.5, -4.5])


def test_several_optimizers_that_step_side_by_side_are_one_update():
    class two(Probe):
        def __init__(self):
            super().__init__()
            self.v = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch, optimizer_idx):
            return batch * (self.w if optimizer_idx == 0 else self.v)

        def configure_optimizers(self):
            return [torch.optim.SGD([self.w], 1.0), torch.optim.SGD([self.v], 2.0)]

    ema = EMA(decay=0.5)
    trainer(ema).fit(two(), probe_batches(3))
    assert ema.updates == 3
    assert ema.average["w"].item() == by_hand([-1.0, -3.0, -6.0])
    assert ema.average["v"].item() == by_hand([-2.0, -6.0, -12.0])


def test_each_step_of_a_batch_that_is_cut_is_an_update():
    class halves(Plugin):
        name = "halves"

        @hookimpl
        def split_batch(self, loop):
            return [loop.batch / 2, loop.batch / 2]

    ema = EMA(decay=0.5)
    trainer(ema, halves()).fit(Probe(), probe_batches(2))
    assert ema.updates == 4
    assert ema.average["w"].item() == by_hand([-0.5, -1.0, -2.0, -3.0])


def test_warm_up_begins_with_a_small_decay():
    ema = EMA(decay=0.3, warmup=True)
    trainer(ema).fit(Probe(), probe_batches(6))
    expected = by_hand([-1.0, -3.0, -6.0, -10.0, -15.0, -21.0], lambda n: min(0.3, (1 + n) / (10 + n)))
    assert ema.average["w"].item() == pytest.approx(expected, rel=1e-6)


def test_without_a_decay_it_is_999_thousandths():
    ema = EMA()
    trainer(ema).fit(Probe(), probe_batches(2))
    assert ema.average["w"].item() == pytest.approx(by_hand([-1.0, -3.0], lambda n: 0.999), rel=1e-6)


class Normed(TinyClassifier):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))


def test_buffers_are_averaged_when_asked():
    data = classification_batches(3)
    without, ema = EMA(decay=0.5), EMA(decay=0.5, buffers=True)
    trainer(without).fit(Normed(), data)
    assert not any("running" in name for name in without.average)
    torch.manual_seed(0)
    trainer(ema).fit(Normed(), data)
    torch.manual_seed(0)
    plain = Normed()
    optimizer, means = plain.configure_optimizers(), []
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
        means.append(plain.net[1].running_mean.clone())
    expected = torch.lerp(torch.lerp(means[0], means[1], 0.5), means[2], 0.5)
    assert torch.equal(ema.average["net.1.running_mean"], expected)
    assert "net.1.num_batches_tracked" not in ema.average


def test_16_bit_weights_are_averaged_in_float32():
    class half(Probe):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros((), dtype=torch.bfloat16))

    ema = EMA(decay=0.999)
    trainer(ema).fit(half(), probe_batches(4))
    assert ema.average["w"].dtype == torch.float32
    assert ema.average["w"].item() == pytest.approx(by_hand([-1.0, -3.0, -6.0, -10.0], lambda n: 0.999), rel=1e-5)
    module = half()
    ema.copy_to(module)
    assert module.w.dtype == torch.bfloat16


class Looks(Plugin):
    """Evaluates after each epoch, and keeps the weight that the evaluation saw and the one after it."""

    name, after = "looks", ("ema",)

    def validate(self):
        self.seen, self.fails = [], False

    @hookimpl
    def after_epoch(self, loop):
        try:
            evaluate(loop, "validate", {None: probe_batches(1)})
        except RuntimeError:
            self.seen.append("error")
        self.seen.append(loop.module.w.item())


class Validated(Probe):
    fails = False

    def validation_step(self, batch):
        self.log("val_w", self.w.detach())
        if self.fails:
            raise RuntimeError("the test says so")


@pytest.mark.parametrize("validate", [True, False])
def test_validation_sees_the_average_when_asked_and_training_goes_on_with_the_weights(validate):
    class module(Validated):
        saw = []

        def validation_step(self, batch):
            self.saw.append(self.w.item())

    looks = Looks()
    trainer(EMA(decay=0.5, in_validation=validate), looks, max_epochs=2).fit(module(), probe_batches(2))
    assert looks.seen == [-3.0, -6.0]
    averages = [by_hand([-1.0, -3.0]), by_hand([-1.0, -3.0, -4.0, -6.0])]
    assert module.saw == (averages if validate else looks.seen)


def test_weights_are_back_after_an_evaluation_that_fails():
    looks = Looks()
    module = Validated()
    module.fails = True
    trainer(EMA(decay=0.5, in_validation=True), looks).fit(module, probe_batches(2))
    assert looks.seen == ["error", -3.0]
    assert module.w.item() == -3.0


def test_the_average_may_be_left_in_the_module_at_the_end():
    module = Probe()
    trainer("ema", ema_decay=0.5, ema_keep=True).fit(module, probe_batches(3))
    assert module.w.item() == by_hand([-1.0, -3.0, -6.0])

    class fails(Probe):
        def training_step(self, batch):
            if batch == 3:
                raise RuntimeError("the test says so")
            return super().training_step(batch)

    module = fails()
    with pytest.raises(RuntimeError):
        trainer("ema", ema_decay=0.5, ema_keep=True).fit(module, probe_batches(3))
    assert module.w.item() == -3.0


def test_a_resumed_average_goes_on_and_the_next_fit_starts_clean():
    data, whole = probe_batches(4), EMA(decay=0.5)
    trainer(whole).fit(Probe(), data)
    first = EMA(decay=0.5)
    module = Probe()
    trainer(first).fit(module, data[:2])
    second = EMA(decay=0.5)
    state = pickle.loads(pickle.dumps(first.state_dict()))

    class resume(Plugin):
        name = "resume"
        after = ("ema",)

        @hookimpl
        def before_fit(self, loop):
            if state:
                second.load_state_dict(state)
                state.clear()

    again = trainer(second, resume())
    again.fit(module, data[2:])
    assert torch.equal(second.average["w"], whole.average["w"])
    assert second.updates == whole.updates
    again.fit(Probe(), data[:1])
    assert (second.updates, second.average["w"].item()) == (1, -1.0)
    pickle.loads(pickle.dumps(second))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.0}, r"ema_decay \(ema.decay\) must be a number from 0 to below 1; it is 1.0"),
        ({"decay": -0.1}, "ema_decay"),
        ({"every": 0}, r"ema_every \(ema.every\) must be a whole number from 1; it is 0"),
        ({"device": "nowhere"}, r"ema_device \(ema.device\) must be a device that torch knows"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EMA(**options)


def test_an_option_that_tunes_it_does_not_turn_it_on():
    with pytest.raises(TypeError, match="'ema_every' tunes plugin 'ema', and nothing turns that on: give ema_decay"):
        trainer(ema_every=2)


def test_an_evaluation_after_the_fit_has_the_modules_own_weights():
    class Sees(Probe):
        def validation_step(self, batch):
            self.log("w", self.w.detach().clone())

    module, run = Sees(), Trainer(["-*", "ema", "validation"], ema_decay=0.5, ema_validate=True, num_sanity_val_steps=0)
    run.fit(module, probe_batches(2), probe_batches(1))
    assert run.validate(module, probe_batches(1)) == {"w": module.w.item()}
    assert run.callback_metrics["w"] == module.w.item() != run.plugin("ema").average["w"].item()
