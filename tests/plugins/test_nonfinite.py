import math
import pickle
import warnings

import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, World, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches

NAN = math.nan


def batches(*values):
    return [torch.tensor(float(value)) for value in values]


def fit(module, data, **options):
    trainer = Trainer(["-*", *options.pop("plugins", ())], **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = trainer.fit(module, data)
    return result, [str(warning.message) for warning in warned], trainer


@pytest.mark.parametrize(
    ("action", "accumulate", "w", "steps"),
    [
        ("skip_step", 1, -(1 + 2 + 4 + 5), 4),
        ("drop_batch", 1, -(1 + 2 + 4 + 5), 4),
        ("rewind", 1, -(1 + 2 + 4 + 5), 4),
        ("skip_step", 2, -(1.5 + 5), 2),
        ("drop_batch", 2, -(1.5 + 4 + 5), 3),
        ("rewind", 2, -(1.5 + 4.5), 2),  # the window of the bad batch begins anew with the next
        ("stop", 1, -(1 + 2), 2),
        ("stop", 2, -1.5, 1),
    ],
)
def test_a_bad_loss(action, accumulate, w, steps):
    module = Probe()
    result, warned, _ = fit(module, batches(1, 2, NAN, 4, 5), nonfinite=action, accumulate_grad_batches=accumulate)
    assert (module.w.item(), result.global_step) == (w, steps)
    assert warned == [f"nonfinite: the loss is nan at epoch 0, batch 2 (counted from 0); what is done: {action}"]
    assert result.metrics["nonfinite_events"] == 1
    assert result.status == ("stopped" if action == "stop" else "finished")


def test_warn_goes_on_and_counts_a_window_once():
    module = Probe()
    result, warned, _ = fit(module, batches(1, NAN, 3, 4), nonfinite="warn")
    assert module.w.isnan()
    assert result.global_step == 4
    assert [message.split(";")[0] for message in warned] == [
        f"nonfinite: the loss is nan at epoch 0, batch {index} (counted from 0)" for index in (1, 2, 3)
    ]  # from the first on, w is NaN


class BadGradient(Module):
    """The gradient of ``w`` is the batch, or NaN with a finite loss where the batch is negative."""

    def __init__(self, lr=1.0):
        super().__init__()
        self.w, self.lr = nn.Parameter(torch.zeros(())), lr

    def training_step(self, batch):
        return batch * self.w if batch >= 0 else (self.w * 0).sqrt() + 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


@pytest.mark.parametrize("action", ["skip_step", "drop_batch", "rewind"])
@pytest.mark.parametrize("clip", [None, 100.0])
def test_a_bad_gradient_skips_the_window(action, clip):
    module = BadGradient()
    data = batches(1, 2, -1, 3, 4, 5)
    result, warned, trainer = fit(module, data, nonfinite=action, accumulate_grad_batches=2, gradient_clip_val=clip)
    assert (module.w.item(), result.global_step) == (-(1.5 + 4.5), 2)
    assert trainer.loop.skipped_steps == 1
    assert warned == [
        f"nonfinite: the gradient of w has NaN in it at epoch 0, batch 3 (counted from 0); what is done: {action}"
    ]


def test_stop_at_a_bad_gradient():
    module = BadGradient()
    result, _, _ = fit(module, batches(1, -1, 3), nonfinite="stop")
    assert (module.w.item(), result.status) == (-1.0, "stopped")
    assert result.reason == "the gradient of w has NaN in it at epoch 0, batch 1 (nonfinite)"


def test_only_what_is_watched():
    module = BadGradient()
    _, warned, _ = fit(module, batches(1, -1), nonfinite="skip_step", nonfinite_watch=["loss"])
    assert module.w.isnan()
    assert warned == []


def test_a_watched_loss_alone_still_skips_the_step():
    module = Probe()
    fit(module, batches(1, NAN, 3), nonfinite="skip_step", nonfinite_watch=["loss"])
    assert module.w.item() == -4.0


def test_rewind_undoes_a_step_that_spoils_a_parameter():
    module = BadGradient(lr=1e38)
    result, warned, trainer = fit(module, batches(3, 1, 0.25), nonfinite="rewind")
    assert module.w.item() == pytest.approx(-3.25e38)
    assert (result.global_step, trainer.loop.skipped_steps) == (2, 1)
    assert warned == [
        "nonfinite: the parameter w has infinity in it at epoch 0, batch 1 (counted from 0); what is done: rewind"
    ]


class Normed(Module):
    """Batch norm keeps running statistics, which one bad batch spoils in forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rewind_goes_on_as_if_the_data_had_never_been(accumulate):
    data = classification_batches(8)
    spoilt = list(data)
    spoilt[4:4] = [(torch.full((8, 4), NAN), data[0][1])] * accumulate
    found, right = Normed(), Normed()
    schedule = {"plugins": ["lr_schedule"], "accumulate_grad_batches": accumulate}
    _, _, trainer = fit(found, spoilt, nonfinite="rewind", **schedule)
    _, _, plain = fit(right, data, **schedule)
    for one, other in zip(found.state_dict().values(), right.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    ours, theirs = (each.loop.optimizers[0].state_dict() for each in (trainer, plain))
    assert ours["param_groups"] == theirs["param_groups"]
    for index, state in theirs["state"].items():
        assert all(torch.equal(value, ours["state"][index][name]) for name, value in state.items())


def test_rewind_without_it_the_statistics_are_spoilt():
    data = classification_batches(3)
    module = Normed()
    fit(module, [(torch.full((8, 4), NAN), data[0][1]), *data], nonfinite="drop_batch")
    assert module.net[1].running_mean.isnan().all()


def test_rewind_to_a_copy_of_some_steps_before():
    module = Probe()
    fit(module, batches(1, 2, 3, 4, 5, NAN, 7), nonfinite="rewind", nonfinite_keep_every=3)
    assert module.w.item() == -(1 + 2 + 3 + 7)  # the copy is of after 3 steps


def test_the_copies_are_dropped_after_the_run():
    _, _, trainer = fit(Probe(), batches(1, 2), nonfinite="rewind")
    (plugin,) = trainer.plugins
    assert plugin._good is None


@pytest.mark.parametrize("action", ["skip_step", "drop_batch", "rewind"])
def test_the_limit_counts_events_without_a_clean_step_between(action):
    module = Probe()
    result, warned, _ = fit(module, batches(1, NAN, 3, NAN, NAN, 6), nonfinite=action, nonfinite_limit=2)
    assert (module.w.item(), result.status, len(warned)) == (-4.0, "stopped", 3)
    assert "2 values in a row were not finite" in result.reason
    _, _, trainer = fit(Probe(), batches(NAN, 2, NAN, 4, NAN, 6), nonfinite=action, nonfinite_limit=2)
    assert trainer.loop.status == "finished"


def test_a_step_that_others_called_off_is_no_event():
    class Veto(Plugin):
        name = "veto"
        before = ("nonfinite",)

        @hookimpl
        def before_step(self, loop):
            loop.skip_step("first")

    _, warned, trainer = fit(BadGradient(), batches(-1, -1), plugins=[Veto()], nonfinite="skip_step")
    assert warned == []
    assert trainer.loop.skipped_steps == 2


def test_what_another_rank_finds_all_act_on():
    class Other(World):
        """A world whose second rank has a bad loss in the second batch."""

        size = 2

        def agree(self, *reasons):
            forward = self.loop.batch_idx == 1 and not self.told
            self.told = self.told or forward
            return ("the loss is nan at epoch 0, batch 1, rank 1",) if forward else reasons

    class Joins(Plugin):
        name = "joins"
        before = ("nonfinite",)

        @hookimpl
        def setup(self, loop):
            loop.world = Other()
            loop.world.loop, loop.world.told = loop, True

        @hookimpl
        def after_forward(self, loop):
            loop.world.told = loop.batch_idx != 1

    module = Probe()
    _, warned, trainer = fit(module, batches(1, 2, 3), plugins=[Joins()], nonfinite="skip_step")
    assert warned == [
        "nonfinite: the loss is nan at epoch 0, batch 1, rank 1 (counted from 0); what is done: skip_step"
    ]
    assert (module.w.item(), trainer.loop.skipped_steps) == (-4.0, 1)


def test_its_counts_survive_a_restart_and_a_new_fit_starts_clean():
    _, _, trainer = fit(Probe(), batches(1, NAN, NAN), nonfinite="skip_step")
    (plugin,) = trainer.plugins
    state = plugin.state_dict()
    assert {name: state[name] for name in ("events", "in_a_row")} == {"events": 2, "in_a_row": [2]}
    copy = pickle.loads(pickle.dumps(plugin))
    copy.load_state_dict(state)
    assert copy.state_dict() == state
    trainer.fit(Probe(), batches(1))
    assert {name: plugin.state_dict()[name] for name in ("events", "in_a_row")} == {"events": 0, "in_a_row": [0]}


def test_where_nothing_is_wrong_nothing_changes():
    data = classification_batches()
    torch.manual_seed(0)
    plain = TinyClassifier()
    fit(plain, data, gradient_clip_val=0.5)
    for action in ("warn", "skip_step", "drop_batch", "rewind", "stop"):
        torch.manual_seed(0)
        module = TinyClassifier()
        _, warned, _ = fit(module, data, nonfinite=action, gradient_clip_val=0.5)
        assert warned == []
        assert all(torch.equal(*pair) for pair in zip(plain.parameters(), module.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"nonfinite_watch": []}, "nonfinite_watch"),
        ({"nonfinite_watch": "loss"}, "nonfinite_watch"),
        ({"nonfinite_watch": ["losses"]}, "nonfinite_watch"),
        ({"nonfinite_watch": ["param"]}, "without 'param'"),
        ({"nonfinite_limit": 0}, "nonfinite_limit"),
        ({"nonfinite_keep_every": 0}, "nonfinite_keep_every"),
    ],
)
def test_nonsense_is_refused_at_construction(options, match):
    with pytest.raises(ValueError, match=match):
        Trainer(nonfinite="skip_step", **options)


def test_an_unknown_action_is_refused():
    with pytest.raises(TypeError, match="nonfinite"):
        Trainer(nonfinite="ignore")
