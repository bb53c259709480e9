import copy
import math
import random

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop.toolkit import ROLES
from lightloop_plugins.lr_find import LRFound, lr_find


def classifier():
    torch.manual_seed(0)
    return TinyClassifier()


@pytest.mark.parametrize("mode", ["exponential", "linear"])
@pytest.mark.parametrize("factor", [1, 2])
def test_equals_a_plain_loop_bit_for_bit(mode, factor):
    data = classification_batches(6)
    trainer = Trainer(["-*"], accumulate_grad_batches=factor)
    found = lr_find(trainer, classifier(), data, min_lr=1e-4, max_lr=0.5, steps=7, mode=mode, diverged=None)
    module, lrs, losses = classifier(), [], []
    optimizer, windows = module.configure_optimizers(), [data[start : start + factor] for start in range(0, 6, factor)]
    for step in range(7):
        share = step / 6
        lr = 1e-4 + (0.5 - 1e-4) * share if mode == "linear" else 1e-4 * (0.5 / 1e-4) ** share
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        window = windows[step % len(windows)]
        parts = [cross_entropy(module(x), y) for x, y in window]
        for part in parts:
            (part / factor).backward()
        optimizer.step()
        lrs.append(lr)
        losses.append(torch.stack(parts).mean().item())
    assert found.lrs == lrs
    assert found.losses == losses


def test_the_loss_of_a_step_is_the_weighted_mean_of_its_window():
    class Weighted(Probe):
        def training_step(self, batch, batch_idx):
            return {"loss": self.w + batch, "weight": 1 + 2 * batch_idx}

    trainer = Trainer(["-*"], accumulate_grad_batches=2)
    found = lr_find(trainer, Weighted(), probe_batches(2), min_lr=1e-9, max_lr=1e-8, steps=2, diverged=None)
    assert found.losses[0] == (1 * 1 + 2 * 3) / 4


def test_nothing_is_left_of_it():
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(data, 8, shuffle=True, generator=generator)
    module = classifier().eval()
    trainer = Trainer(["-*", "lr_schedule"], accumulate_grad_batches=2, ema_decay=0.9)
    trainer.fit(module.train(), loader)
    module.net[1].eval()

    def state():
        return [
            {name: value.tolist() for name, value in module.state_dict().items()},
            [(name, parameter.grad) for name, parameter in module.named_parameters()],
            [part.training for part in module.modules()],
            [sorted(vars(plugin)) for plugin in trainer.plugins],
            {name: value.tolist() for name, value in trainer.plugin("ema").average.items()},
            (torch.get_rng_state().tolist(), random.getstate(), generator.get_state().tolist()),
        ]

    before, loop = state(), trainer.loop
    lr_find(trainer, module, loader, steps=5)
    assert state() == before
    assert trainer.loop is loop


def test_it_ends_where_the_loss_diverges():
    class explodes(Probe):
        def training_step(self, batch):
            return (self.w - batch) ** 2 * 100

    data = [torch.tensor(1.0), torch.tensor(1.1)]
    found = lr_find(Trainer(["-*"]), explodes(), data, min_lr=1e-4, max_lr=10.0, steps=200)
    assert 5 < len(found.lrs) < 200
    assert found.smoothed[-1] > 4 * min(found.smoothed)

    class breaks(Probe):
        def training_step(self, batch):
            return self.w * batch + (math.nan if self.loop.global_step == 6 else 0)

    found = lr_find(Trainer(["-*"]), breaks(), probe_batches(), steps=50)
    assert len(found.lrs) == 7
    assert found.suggestion() is None


def test_schedules_bounds_and_what_tells_of_a_run_have_no_part_in_it():
    told = []

    class tells(Plugin):
        name, tags = "tells", ("logger",)

        @hookimpl
        def setup(self, loop):
            told.append(self)

    class scheduled(Probe):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [{"scheduler": StepLR(optimizer, 1, 0.1), "interval": "step"}]

    trainer = Trainer(["-*", "lr_schedule", tells()], max_steps=2)
    found = lr_find(
        trainer, scheduled(), probe_batches(3), steps=5, min_lr=0.1, max_lr=0.5, mode="linear", diverged=None
    )
    assert found.lrs == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert told == []


def test_the_suggestion_is_where_the_loss_falls_most_steeply():
    lrs = [10**exponent for exponent in range(-6, 3)]
    found = LRFound(lrs, [], [5.0, 5.0, 4.9, 4.0, 2.0, 1.5, 1.4, 3.0, 9.0])
    assert found.suggestion(skip_begin=0) == pytest.approx(1e-3)
    assert found.suggestion(skip_begin=5) == pytest.approx(0.1)
    assert found.suggestion(skip_begin=7) is None
    found.smoothed[4:] = [math.nan] * 5
    assert found.suggestion(skip_begin=0) == pytest.approx(1e-3)


def test_the_suggestion_trains():
    data = classification_batches(10)
    found = lr_find(Trainer(["-*"]), classifier(), data, min_lr=1e-5, max_lr=10.0)
    best = found.suggestion()
    assert 1e-3 < best < 5
    module = classifier()
    module.lr = best
    before = sum(cross_entropy(module(x), y).item() for x, y in data)
    Trainer(["-*"], max_epochs=2).fit(module, data)
    assert sum(cross_entropy(module(x), y).item() for x, y in data) < before / 2


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    found = lr_find(Trainer(["-*"]), classifier(), classification_batches(), steps=30)
    found.plot(tmp_path / "lr.png")
    assert (tmp_path / "lr.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_lr": 1.0, "max_lr": 0.1}, "needs 0 < min_lr < max_lr; they are 1.0 and 0.1"),
        ({"min_lr": 0.0}, "needs 0 < min_lr"),
        ({"steps": 1}, "needs 2 steps or more; steps is 1"),
        ({"mode": "cubic"}, "'exponential' or 'linear'; it is 'cubic'"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lr_find(Trainer(["-*"]), Probe(), probe_batches(), **options)


def test_a_generator_is_refused_before_it_is_used_up():
    data = iter(probe_batches())
    with pytest.raises(TypeError, match="a generator cannot be: give a list or DataLoader"):
        lr_find(Trainer(["-*"]), Probe(), data)
    assert len(list(data)) == 10


def test_as_an_option_it_sets_the_rate_before_training():
    data = classification_batches(10)
    expected = lr_find(Trainer(["-*"]), classifier(), data).suggestion()
    for value in (True, "lr"):
        module = classifier()
        trainer = Trainer(["-*"], auto_lr_find=value)
        trainer.fit(module, data)
        assert module.lr == expected
        assert trainer.loop.optimizers[0].param_groups[0]["lr"] == expected
    plain = classifier()
    plain.lr = expected
    Trainer(["-*"]).fit(plain, data)
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="TinyClassifier has no attribute 'rate' to set"):
        Trainer(["-*"], auto_lr_find="rate").fit(copy.deepcopy(plain), data)


class Stopper(Plugin):
    """A stranger's: it stops the first run that it is in."""

    name = "stranger"

    @hookimpl
    def after_step(self, loop):
        loop.stop("seen enough")


@pytest.mark.parametrize("role", ROLES)
def test_a_strangers_plugin_has_no_part_in_it_if_its_role_has_none(role):
    kind = type("Role", (Stopper,), {"tags": (role,)})
    needy = type("Needy", (Stopper,), {"name": "needy", "requires": ("stranger",)})
    found = lr_find(Trainer(["-*", kind(), needy()]), TinyClassifier(), classification_batches(20), steps=20)
    assert len(found.lrs) == (1 if role == "shortens" else 20)


def test_a_strangers_stopper_lets_an_automatic_search_end():
    module = TinyClassifier()
    module.lr = 0.1
    kind = type("Role", (Stopper,), {"tags": ("stops",)})
    trainer = Trainer(["-*", kind()], auto_lr_find=True, max_epochs=1)
    result = trainer.fit(module, classification_batches(20))
    assert (result.status, result.reason, result.global_step) == ("stopped", "seen enough", 1)
    assert trainer.plugin("lr_find").found.suggestion() == module.lr
