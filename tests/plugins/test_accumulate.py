import pytest
import torch

from lightloop import Trainer
from lightloop.testing import Probe, probe_batches


@pytest.mark.parametrize("batches", [probe_batches, lambda: iter(probe_batches())], ids=["sized", "unsized"])
def test_c1_a_short_last_window_is_the_mean_of_what_is_in_it(batches):
    module = Probe()
    result = Trainer(accumulate_grad_batches=4).fit(module, batches())
    assert result.global_step == 3
    assert module.w.item() == -18.5


def test_c3_an_epoch_shorter_than_the_window_is_one_window():
    module = Probe()
    with pytest.warns(UserWarning, match="more than the 3 batches of an epoch") as warned:
        assert Trainer(accumulate_grad_batches=4).fit(module, probe_batches(3)).global_step == 1
    assert module.w.item() == -2.0
    assert len(warned) == 1
    module = Probe()
    with pytest.warns(UserWarning, match="more than the 2 batches") as warned:
        assert Trainer(accumulate_grad_batches=8, max_epochs=4).fit(module, probe_batches(2)).global_step == 4
    assert module.w.item() == -6.0
    assert len(warned) == 1


@pytest.mark.parametrize(("max_steps", "batches"), [(2, 8), (3, 10), (1, 4)])
def test_c25_the_step_limit_ends_the_run_at_a_window(max_steps, batches):
    module = Probe()
    result = Trainer(accumulate_grad_batches=4, max_steps=max_steps).fit(module, probe_batches())
    assert (result.global_step, len(module.seen), module.w.grad) == (max_steps, batches, None)


def test_a_schedule_counts_epochs_from_0():
    module = Probe()
    result = Trainer(accumulate_grad_batches={1: 2, 2: 4}, max_epochs=4).fit(module, probe_batches(4))
    assert result.global_step == 4 + 2 + 1 + 1


@pytest.mark.parametrize("value", [0, -1, {}, {0: 0}, {-1: 2}, {0: 2.0}, {"0": 2}])
def test_nonsense_is_refused_at_construction(value):
    with pytest.raises(ValueError, match="accumulate_grad_batches"):
        Trainer(accumulate_grad_batches=value)


def test_true_is_no_number():
    with pytest.raises(TypeError, match=r"accumulate_grad_batches .* must be int \| Mapping\[int, int\]; True is bool"):
        Trainer(accumulate_grad_batches=True)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_equals_a_plain_loop_bit_for_bit(factor):
    from lightloop.testing import TinyClassifier, classification_batches

    data = classification_batches(10)
    torch.manual_seed(0)
    ours = TinyClassifier()
    torch.manual_seed(0)
    plain = TinyClassifier()
    Trainer(accumulate_grad_batches=factor).fit(ours, data)
    optimizer = plain.configure_optimizers()
    for start in range(0, 10, factor):
        window = data[start : start + factor]
        optimizer.zero_grad()
        for x, y in window:
            (torch.nn.functional.cross_entropy(plain(x), y) / len(window)).backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_trainer_says_how_many_batches_a_window_has_now():
    seen = []

    class Says(Probe):
        def training_step(self, batch):
            seen.append(self.trainer.accumulate_grad_batches)
            return super().training_step(batch)

    trainer = Trainer(accumulate_grad_batches={0: 1, 1: 2}, max_epochs=2)
    assert trainer.accumulate_grad_batches == 1
    trainer.fit(Says(), probe_batches(2))
    assert seen == [1, 1, 2, 2]
    assert (Trainer(accumulate_grad_batches=4).accumulate_grad_batches, Trainer().accumulate_grad_batches) == (4, 1)
