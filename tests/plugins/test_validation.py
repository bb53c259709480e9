import copy
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Every, Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, Rows, TinyClassifier, classification_batches, probe_batches


class Validated(Probe):
    """Logs the batch as val."""

    def validation_step(self, batch):
        self.log("val", batch)

    test_step = validation_step


class Passes(Plugin):
    """Notes the hooks of passes over evaluation data, and at which steps there was one that counts."""

    name = "passes"
    after = ("validation",)

    def validate(self):
        self.at, self.hooks = [], []

    @hookimpl
    def before_evaluation(self, loop):
        self.hooks.append("before")

    @hookimpl
    def after_evaluation(self, loop):
        self.hooks.append("after")
        if not loop.evaluation.sanity:
            self.at.append(loop.global_step)


def run(module=None, train=5, val=2, plugins=(), **options):
    passes = Passes()
    options = {"num_sanity_val_steps": 0, **options}
    trainer = Trainer(["-*", "validation", passes, *plugins], **options)
    data = probe_batches(train) if isinstance(train, int) else train
    trainer.fit(module or Validated(), data, probe_batches(val) if isinstance(val, int) else val)
    return passes.at


# ------------------------------------------------------------------------------------------------------------- when


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [5, 10, 15]),
        ({"val_check_interval": 1.0}, [5, 10, 15]),
        ({"val_check_interval": 2}, [2, 4, 7, 9, 12, 14]),
        ({"val_check_interval": 1}, list(range(1, 16))),
        ({"val_check_interval": 5}, [5, 10, 15]),
        ({"val_check_interval": 0.5}, [3, 5, 8, 10, 13, 15]),
        ({"val_check_interval": 0.3}, [2, 3, 5, 7, 8, 10, 12, 13, 15]),
        ({"val_check_interval": 0.99}, [5, 10, 15]),
        ({"val_check_interval": 0.001}, list(range(1, 16))),
        ({"check_val_every_n_epoch": 2}, [10]),
        ({"check_val_every_n_epoch": 3}, [15]),
        ({"check_val_every_n_epoch": 2, "val_check_interval": 2}, [7, 9]),
        ({"check_val_every_n_epoch": 2, "val_check_interval": 0.5}, [8, 10]),
        ({"check_val_every_n_epoch": None, "val_check_interval": 3}, [3, 6, 9, 12, 15]),
        ({"check_val_every_n_epoch": None, "val_check_interval": 7}, [7, 14]),
        ({"val_check_interval": "4 steps"}, [4, 8, 12]),
        ({"val_check_interval": "2 epochs"}, [10]),
        ({"val_check_interval": Every("6 batches")}, [6, 12]),
        ({"val_check_interval": timedelta(hours=1)}, []),
    ],
    ids=str,
)
def test_when_it_validates(options, steps):
    assert run(max_epochs=3, **options) == steps


@pytest.mark.parametrize(
    ("options", "steps"), [({"val_check_interval": 0.5}, [1, 2]), ({"val_check_interval": 2}, [0, 1, 1, 2])], ids=str
)
def test_it_counts_batches_where_windows_are_longer(options, steps):
    assert run(train=8, accumulate_grad_batches=4, **options) == steps


def test_an_unsized_loader_counts_batches_or_waits_for_the_end():
    assert run(train=iter(probe_batches(5)), val_check_interval=2) == [2, 4]
    assert run(train=iter(probe_batches(5))) == [5]
    with pytest.raises(ValueError, match="unknown length"):
        run(train=iter(probe_batches(5)), val_check_interval=0.5)


def test_an_interval_longer_than_the_epoch_is_an_error_unless_counted_across_epochs():
    with pytest.raises(ValueError, match=r"val_check_interval .* at most the 5 batches of an epoch"):
        run(val_check_interval=6)
    assert run(val_check_interval=6, check_val_every_n_epoch=None, max_epochs=2) == [6]
    Trainer(["-*", "validation"], val_check_interval=6).fit(Validated(), probe_batches(5))  # nothing to validate on


@pytest.mark.parametrize(
    "options",
    [
        {"val_check_interval": 0},
        {"val_check_interval": -1},
        {"val_check_interval": 0.0},
        {"val_check_interval": 1.1},
        {"val_check_interval": "3 moons"},
        {"check_val_every_n_epoch": 0},
        {"check_val_every_n_epoch": None},
        {"num_sanity_val_steps": -2},
    ],
    ids=str,
)
def test_nonsense_is_refused_at_construction(options):
    with pytest.raises(
        ValueError, match=r"val_check_interval|check_val_every_n_epoch|num_sanity_val_steps|when to act"
    ):
        Trainer(["-*", "validation"], **options)


@pytest.mark.parametrize("options", [{"val_check_interval": True}, {"check_val_every_n_epoch": 1.0}])
def test_other_types_are_refused(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        Trainer(["-*", "validation"], **options)


def test_a_stop_inside_an_epoch_brings_no_validation():
    assert run(max_steps=3) == []
    assert run(max_steps=3, val_check_interval=2) == [2]
    assert run(max_steps=3, val_check_interval=3) == [3]  # its mark and the stop meet
    assert run(max_steps=5) == [5]  # the epoch is over


def test_c17_a_plateau_scheduler_waits_for_validation():
    class Plateau(Validated):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val"}}

    module = Plateau()
    trainer = Trainer(["-*", "validation", "lr_schedule"], max_steps=1)
    trainer.fit(module, probe_batches(5), probe_batches(2))
    assert trainer.loop.optimizers[0].param_groups[0]["lr"] == 1.0


# ------------------------------------------------------------------------------------------------- on what, with what


def test_without_data_nothing_happens():
    passes = Passes()
    Trainer(["-*", "validation", passes]).fit(Validated(), probe_batches(3))
    assert passes.hooks == []


def test_data_without_a_step_is_an_error_before_training():
    module = Probe()
    with pytest.raises(TypeError, match="there is validation data and Probe has no validation_step"):
        Trainer(["-*", "validation"]).fit(module, probe_batches(3), probe_batches(2))
    assert module.seen == []


def test_data_without_batches_is_warned_of():
    passes = Passes()
    with pytest.warns(UserWarning, match="validation data has no batches"):
        Trainer(["-*", "validation", passes]).fit(Validated(), probe_batches(3), [])
    assert passes.hooks == []


def test_a_limit_of_0_is_no_validation_no_sanity_pass_and_no_hooks():
    passes = Passes()
    Trainer(["-*", "validation", passes], limit_val_batches=0).fit(Probe(), probe_batches(3), probe_batches(2))
    assert passes.hooks == []


def test_several_loaders_have_metrics_of_their_own():
    class Several(Validated):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.log("val", batch + 10 * dataloader_idx)

    def loader(count):
        return DataLoader(torch.stack(probe_batches(count)), batch_size=None)

    trainer = Trainer(["-*", "validation"])
    trainer.fit(Several(), probe_batches(2), [loader(2), loader(3)])
    assert trainer.callback_metrics == {"val/0": 1.5, "val/1": 12.0}
    trainer.fit(Several(), probe_batches(2), {"near": loader(1), "far": loader(2)})
    assert trainer.callback_metrics == {"val/near": 1.0, "val/far": 11.5}


def test_the_loaders_are_asked_for_once():
    class Own(Validated):
        asked = 0

        def val_dataloader(self):
            self.asked += 1
            return probe_batches(2)

    module = Own()
    trainer = Trainer(["-*", "validation"], max_epochs=3)
    trainer.fit(module, probe_batches(2))
    assert module.asked == 1
    assert trainer.callback_metrics == {"val": 1.5}


# ---------------------------------------------------------------------------------------------------------- sanity


def sanity(count, val=5, **options):
    seen = []

    class Sane(Validated):
        def validation_step(self, batch, batch_idx):
            if self.loop.evaluation.sanity:
                seen.append(batch_idx)
            self.log("val", batch, prog_bar=True)

    class Look(Plugin):
        name = "look"

        def validate(self):
            self.metrics = {}, {}, set()

        @hookimpl
        def before_epoch(self, loop):
            self.metrics = dict(loop.metrics.latest), dict(loop.metrics.updates), set(loop.metrics.on_bar)

    look = Look()
    given = {} if count is None else {"num_sanity_val_steps": count}
    Trainer(["-*", "validation", look], **given, **options).fit(Sane(), probe_batches(2), probe_batches(val))
    assert look.metrics == ({}, {}, set())
    return seen


@pytest.mark.parametrize(
    ("count", "options", "seen"),
    [
        (None, {}, [0, 1]),
        (0, {}, []),
        (3, {}, [0, 1, 2]),
        (9, {}, [0, 1, 2, 3, 4]),
        (-1, {}, [0, 1, 2, 3, 4]),
        (-1, {"limit_val_batches": 2}, [0, 1]),
        (3, {"limit_val_batches": 1}, [0]),
        (2, {"limit_train_batches": 0}, []),
        (2, {"max_epochs": 0}, []),
        (2, {"max_steps": 0}, []),
        (2, {"max_time": 0}, []),
    ],
    ids=str,
)
def test_the_sanity_pass(count, options, seen):
    assert sanity(count, **options) == seen


def test_the_old_name_of_the_sanity_steps():
    with pytest.warns(DeprecationWarning, match="'nb_sanity_val_steps' is now called 'num_sanity_val_steps'"):
        assert Trainer(["-*"], nb_sanity_val_steps=3).plugin("validation").sanity_steps == 3


def test_the_sanity_pass_comes_when_everybody_is_ready_and_not_in_a_resumed_run():
    events = []

    class Late(Plugin):
        name = "late"
        after = ("validation",)
        batches = 0

        @hookimpl
        def before_fit(self, loop):
            events.append("ready")
            loop.total_batches = self.batches

        @hookimpl
        def before_evaluation(self, loop):
            events.append("sanity" if loop.evaluation.sanity else "pass")

    late = Late()
    trainer = Trainer(["-*", "validation", late])
    trainer.fit(Validated(), probe_batches(2), probe_batches(2))
    assert events == ["ready", "sanity", "pass"]
    late.batches = 7
    events.clear()
    trainer.fit(Validated(), probe_batches(2), probe_batches(2))
    assert events == ["ready", "pass"]


# ------------------------------------------------------------------------------------------------ what it leaves alone


@pytest.mark.parametrize("when", ["sanity", "mid-epoch"])
def test_c29_validation_draws_nothing_from_the_random_numbers_of_training(when):
    class Order(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))
            self.seen, self.noise = [], []

        def training_step(self, batch):
            self.seen.append(int(batch[0]))
            self.noise.append(float(nn.functional.dropout(torch.ones(8), 0.5).sum()))
            return self.w * 1.0

        def validation_step(self, batch):
            torch.rand(3)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = TensorDataset(torch.arange(8))
    module, plain = Order(), Order()
    options = {"num_sanity_val_steps": 2} if when == "sanity" else {"num_sanity_val_steps": 0, "val_check_interval": 3}
    for one, val, given in ((module, DataLoader(data), options), (plain, None, {})):
        torch.manual_seed(0)
        Trainer(["-*", "validation"], **given).fit(one, DataLoader(data, shuffle=True), val)
    assert module.seen == plain.seen == [2, 0, 5, 3, 1, 4, 7, 6]
    assert module.noise == plain.noise


class Frozen(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.net[1].eval()
        self.fails = False

    def training_step(self, batch):
        return self.net(batch).pow(2).mean()

    def validation_step(self, batch):
        assert not any(part.training for part in self.modules())
        assert not torch.is_grad_enabled()
        self.net(batch)
        if self.fails:
            raise RuntimeError("no")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def modes(module):
    return [part.training for part in module.modules()]


def test_c49_modes_are_as_before_whatever_happens():
    module, batches = Frozen(), [torch.randn(3, 4) for _ in range(2)]
    before, statistics = modes(module), copy.deepcopy(module.net[1].state_dict()["running_mean"])
    Trainer(["-*", "validation"], val_check_interval=1, max_epochs=2).fit(module, batches, batches)
    assert modes(module) == before == [True, True, True, False]
    assert torch.equal(module.net[1].running_mean, statistics)
    module.fails = True
    with pytest.raises(RuntimeError, match="no"):
        Trainer(["-*", "validation"]).fit(module, batches, batches)
    assert modes(module) == before
    assert torch.is_grad_enabled()
    module.fails = False
    module.eval()
    with pytest.warns(UserWarning, match="in eval mode"):
        Trainer(["-*", "validation"]).fit(module, batches, batches)
    assert modes(module) == [False] * 4


@pytest.mark.parametrize("accumulate", [1, 4])
def test_training_is_the_same_bit_for_bit_with_validation_in_the_middle_of_windows(accumulate):
    data = classification_batches(6)
    modules = []
    for val, options in ((data[:2], {"val_check_interval": 1}), (None, {})):
        torch.manual_seed(0)
        modules.append(TinyClassifier())
        Trainer(["-*", "validation"], accumulate_grad_batches=accumulate, max_epochs=2, **options).fit(
            modules[-1], data, val
        )
    for one, other in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert torch.equal(one, other)


# ------------------------------------------------------------------------------------------------ rows, and other stages


def test_c61_validation_is_logged_at_the_step_that_training_is_at():
    class Logs(Validated):
        def training_step(self, batch):
            self.log("loss", float(batch))
            return super().training_step(batch)

    rows = Rows()
    Trainer(["-*", "validation", "log_every", rows], log_every_n_steps=1, max_epochs=2).fit(
        Logs(), probe_batches(5), probe_batches(2)
    )
    assert [step for step, row in rows.rows if "loss" in row] == list(range(1, 11))
    assert [step for step, row in rows.rows if "val" in row] == [5, 10]
    steps = [step for step, _ in rows.rows]
    assert steps == sorted(steps)


FIT_HOOKS = ("before_fit", "before_epoch", "before_batch", "after_batch", "after_epoch", "after_fit", "before_step")


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_the_other_stages_call_no_hook_of_a_fit_and_tell_loggers_their_metrics(stage):
    from lightloop.testing import Recorder

    class Whole(Validated):
        def predict_step(self, batch):
            return batch * 2

    rows, recorder = Rows(), Recorder()
    trainer = Trainer(["-*", "validation", "log_every", rows, recorder])
    found = getattr(trainer, stage)(Whole(), probe_batches(3))
    assert not set(recorder.events) & set(FIT_HOOKS)
    assert recorder.events[:2] == ["setup", "prepare_loader"]
    assert trainer.loop.stage == stage
    if stage == "predict":
        assert [float(output) for output in found] == [2.0, 4.0, 6.0]
        assert rows.rows == []
    else:
        assert found == {"val": 2.0}
        assert [row["val"] for _, row in rows.rows] == [2.0]


def test_a_resumed_run_does_not_validate_twice():
    from lightloop_plugins.validation import Validation

    plugin = Validation(interval=0.5)
    Trainer(["-*", plugin]).fit(Validated(), probe_batches(4), probe_batches(1))
    state = plugin.state_dict()

    class Resume(Plugin):
        name = "resume"
        after = ("validation",)

        @hookimpl
        def before_fit(self, loop):
            # saved at the end of epoch 0, before it was counted
            loop.batch_idx = loop.total_batches = loop.global_step = 4
            again.load_state_dict(state)

    again, passes = Validation(interval=0.5), Passes()
    Trainer(["-*", again, Resume(), passes], max_epochs=2).fit(Validated(), probe_batches(4), probe_batches(1))
    assert passes.at == [6, 8]
