"""The loop by itself: its events in order, its counters, windows and requests, and that its numbers are a plain loop's."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from lightloop import Loop, Module, Plugin, Trainer, evaluate, hookimpl
from lightloop.testing import Probe, Recorder, TinyClassifier, classification_batches, probe_batches

BARE = "-*"
BATCH = ["move_batch", "before_batch", "split_batch", "select_optimizers"]
PIECE = ["hold_step", "forward", "after_forward", "before_backward", "backward", "after_backward"]
STEP = ["reduce_gradients", "unscale_gradients", "before_step", "step", "after_step", "zero_grad"]
BEGIN = ["setup", "prepare_loader", "configure_optimizers", "zero_grad", "before_fit"]
EPOCH = ["epochs_remain", "before_epoch", "read_batches"]
LENGTH = ["epochs_remain", "before_epoch", "epoch_batches", "read_batches"]  # asked by who accumulates
END = ["epochs_remain", "after_fit", "teardown"]
BETWEEN = ["between_batches"]
HELD = [*BATCH, PIECE[0], "plan_window", *PIECE[1:], "after_batch"]  # the first batch of a window
STEPPED = [*BATCH, *PIECE, *STEP, "after_batch"]


def fit(module: nn.Module, train: Any, *plugins: Any, **options: Any) -> Loop:
    trainer = Trainer([BARE, *plugins], **options)
    trainer.fit(module, train)
    assert trainer.loop is not None
    return trainer.loop


def events(module: nn.Module, train: Any, *plugins: Any, **options: Any) -> list[str]:
    recorder = Recorder()
    fit(module, train, recorder, *plugins, **options)
    return recorder.events


def at(hook: str, **when: Any) -> Any:
    """A decorator that makes a plugin of a function of the loop, called in ``hook`` where the loop is as ``when`` says."""

    def make(function: Any) -> Plugin:
        def call(self: Any, loop: Loop) -> None:
            if all(getattr(loop, name) == value for name, value in when.items()):
                function(loop)

        return type("At", (Plugin,), {"name": f"at_{hook}", "__module__": __name__, hook: hookimpl(call)})()

    return make


# -------------------------------------------------------------------------------------------------------------- events


def test_every_event_of_two_epochs_with_accumulation():
    assert events(Probe(), probe_batches(3), accumulate_grad_batches=2, max_epochs=2) == [
        *BEGIN,
        *(LENGTH + HELD + BETWEEN + STEPPED + BETWEEN + STEPPED + ["after_epoch"] + BETWEEN),
        *(LENGTH + HELD + BETWEEN + STEPPED + BETWEEN + STEPPED + ["after_epoch"] + BETWEEN),
        *END,
    ]


def test_a_window_that_is_open_when_the_run_stops_is_closed_before_the_epoch_ends():
    stop = at("after_batch", batch_idx=0)(lambda loop: loop.stop("enough"))
    assert events(Probe(), probe_batches(3), stop, accumulate_grad_batches=2) == [
        *BEGIN,
        *LENGTH,
        *HELD,
        "may_stop",
        *BETWEEN,
        *STEP,
        "after_epoch",
        "may_stop",
        "after_fit",
        "teardown",
    ]


def test_a_step_that_is_skipped_has_its_own_event():
    skip = at("before_step")(lambda loop: loop.skip_step("no"))
    assert events(Probe(), probe_batches(1), skip) == [
        *BEGIN,
        *EPOCH,
        *BATCH,
        *PIECE,
        *["reduce_gradients", "unscale_gradients", "before_step"],
        "on_step_skipped",
        "zero_grad",
        "after_batch",
        "after_epoch",
        *BETWEEN,
        *END,
    ]


def test_a_batch_that_is_passed_over_goes_no_further():
    skip = at("before_batch")(lambda loop: loop.skip_batch("no"))
    with pytest.warns(UserWarning, match="nothing was trained in epoch 0: none of its 2 batches had a loss"):
        seen = events(Probe(), [*probe_batches(1), None], skip)
    assert seen == [
        *BEGIN,
        *EPOCH,
        *["move_batch", "before_batch", "after_batch", "between_batches"],
        *["move_batch", "before_batch", "after_batch", "after_epoch", "between_batches"],
        *END,
    ]


def test_two_optimizers_each_go_forward_and_step():
    assert events(Two(), probe_batches(1)) == [
        "setup",
        "prepare_loader",
        "configure_optimizers",
        *["zero_grad", "zero_grad", "before_fit"],
        *EPOCH,
        *BATCH,
        *(PIECE + STEP) * 2,
        "after_batch",
        "after_epoch",
        *BETWEEN,
        *END,
    ]


def test_a_line_search_replays_forward_and_backward_and_what_makes_the_gradient_whole():
    class Quadratic(Probe):
        def training_step(self, batch):
            return (batch - self.w) ** 2

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), max_iter=2)

    assert events(Quadratic(), probe_batches(1)) == [
        *BEGIN,
        *EPOCH,
        *BATCH,
        *PIECE,
        *["reduce_gradients", "unscale_gradients", "before_step"],
        *[
            "step",
            "zero_grad",
            "forward",
            "after_forward",
            "backward",
            "reduce_gradients",
            "unscale_gradients",
            "after_step",
            "zero_grad",
        ],
        *["after_batch", "after_epoch", "between_batches"],
        *END,
    ]


def test_every_event_of_two_epochs_with_validation_and_accumulation():
    recorder = Recorder()
    data = classification_batches(3)
    trainer = Trainer([BARE, "validation", recorder], accumulate_grad_batches=2, max_epochs=2)
    trainer.fit(TinyClassifier(), data, data[:2])
    batch = ["move_batch", "before_evaluation_batch", "evaluate_batch", "after_evaluation_batch"]
    validation = ["before_evaluation", *batch * 2, "after_evaluation_batches", "after_evaluation"]
    epoch = [*LENGTH, *HELD, *BETWEEN, *STEPPED, *BETWEEN, *STEPPED, "after_epoch", *validation, *BETWEEN]
    assert recorder.events == [
        *BEGIN,
        *["prepare_loader", "epochs_remain", *validation],  # the sanity check
        *epoch,
        *epoch,
        *END,
    ]


def test_evaluation_has_its_own_events():
    class Both(Recorder):
        """Validates after the epoch."""

        @hookimpl
        def after_epoch(self, loop: Loop) -> None:
            self.events.append("after_epoch")
            evaluate(loop, "validate")

    recorder = Both()
    trainer = Trainer(["-*", recorder])
    data = classification_batches(1)
    trainer.fit(TinyClassifier(), data, data * 2)
    batch = ["move_batch", "before_evaluation_batch", "evaluate_batch", "after_evaluation_batch"]
    assert recorder.events == [
        *BEGIN,
        *EPOCH,
        *STEPPED,
        "after_epoch",
        "prepare_loader",
        "before_evaluation",
        *batch * 2,
        "after_evaluation_batches",
        "after_evaluation",
        *BETWEEN,
        *END,
    ]
    recorder.events.clear()
    trainer.validate(TinyClassifier(), data)
    assert recorder.events == [
        *["setup", "prepare_loader", "before_evaluation"],
        *batch,
        *["after_evaluation_batches", "after_evaluation", "teardown"],
    ]


# ------------------------------------------------------------------------------------------------- counters and windows


class Two(Module):
    """Two scalar weights, each with SGD of learning rate 1; the loss of batch x is x times the one whose turn it is."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.calls = []

    def training_step(self, batch, batch_idx, optimizer_idx):
        self.calls.append((batch_idx, optimizer_idx))
        return batch * (self.a, self.b)[optimizer_idx]

    def configure_optimizers(self):
        return [torch.optim.SGD([self.a], lr=1.0), torch.optim.SGD([self.b], lr=2.0)]


def counters(loop):
    names = ("epoch", "batch_idx", "total_batches", "total_pieces", "global_step", "skipped_steps", "optimizer_steps")
    return {name: getattr(loop, name) for name in names}


def test_k3_global_step_counts_applied_windows_and_rises_before_after_step():
    seen = []

    class Watch(Plugin):
        name = "watch"

        @hookimpl
        def before_step(self, loop):
            seen.append(("before_step", loop.global_step))
            if loop.batch_idx == 3:
                loop.skip_step("no")

        @hookimpl
        def after_step(self, loop):
            seen.append(("after_step", loop.global_step))

        @hookimpl
        def on_step_skipped(self, loop):
            seen.append((loop.skip_step_reason, loop.global_step))

        @hookimpl
        def after_batch(self, loop):
            seen.append((loop.batch_idx, loop.stepped))

    loop = fit(Probe(), probe_batches(5), Watch(), accumulate_grad_batches=2)
    assert seen == [
        *[(0, False), ("before_step", 0), ("after_step", 1), (1, True)],
        *[(2, False), ("before_step", 1), ("no", 1), (3, False)],
        *[("before_step", 1), ("after_step", 2), (4, True)],
    ]
    assert counters(loop) == {
        "epoch": 1,
        "batch_idx": 0,
        "total_batches": 5,
        "total_pieces": 5,
        "global_step": 2,
        "skipped_steps": 1,
        "optimizer_steps": [2],
    }
    assert loop.module.w.item() == -(1 + 2) / 2 - 5


def test_c31_two_optimizers_count_once():
    module = Two()
    loop = fit(module, probe_batches(), max_steps=5, max_epochs=-1)
    assert (loop.global_step, loop.total_batches, loop.optimizer_steps) == (5, 5, [5, 5])
    assert module.calls == [(batch, optimizer) for batch in range(5) for optimizer in (0, 1)]
    assert (module.a.item(), module.b.item()) == (-15.0, -30.0)


def test_two_optimizers_keep_windows_of_their_own():
    module = Two()
    loop = fit(module, probe_batches(3), accumulate_grad_batches=2)
    assert (loop.global_step, loop.optimizer_steps) == (2, [2, 2])
    assert (module.a.item(), module.b.item()) == (-4.5, -9.0)


def test_c7_accumulation_does_not_depend_on_the_arguments_of_the_step():
    class Without(Probe):
        def training_step(self, batch):
            return batch * self.w

    class With(Probe):
        def training_step(self, batch, batch_idx):
            return batch * self.w

    for kind in (Without, With):
        module = kind()
        assert fit(module, probe_batches(4), accumulate_grad_batches=2).global_step == 2
        assert module.w.item() == -5.0


def returning(values: dict[float, Any]) -> type[Probe]:
    """A probe that returns for a batch what ``values`` says, None included, by default the loss."""

    class Returning(Probe):
        def training_step(self, batch):
            loss = batch * self.w
            value = values.get(batch.item(), ...)
            return loss if value is ... else value if value is None else {"loss": loss, "weight": value}

    return Returning


@pytest.mark.parametrize(
    ("nothing", "steps"),
    [((2,), [1, 3.5]), ((1,), [2, 3.5]), ((1, 2), [3.5]), ((3, 4), [1.5]), ((4,), [1.5, 3]), ((1, 2, 3, 4), [])],
)
def test_none_contributes_nothing_and_shrinks_the_divisor(nothing, steps):
    module = returning(dict.fromkeys(map(float, nothing)))()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop = fit(module, probe_batches(4), accumulate_grad_batches=2)
    assert len(said) == (not steps)
    assert (loop.global_step, module.w.item()) == (len(steps), -sum(steps))
    assert loop.total_batches == 4


def test_skipped_batches_shrink_the_divisor_too():
    module = Probe()
    skip = at("before_batch", batch_idx=1)(lambda loop: loop.skip_batch("no"))
    assert fit(module, probe_batches(5), skip, accumulate_grad_batches=2).global_step == 2
    assert module.seen == [1.0, 3.0, 4.0, 5.0]
    assert module.w.item() == -((1 + 3) / 2 + (4 + 5) / 2)


def test_the_last_batch_passed_over_still_closes_the_window():
    module = Probe()
    skip = at("before_batch", batch_idx=3)(lambda loop: loop.skip_batch("no"))
    assert fit(module, probe_batches(4), skip, accumulate_grad_batches=2).global_step == 2
    assert module.w.item() == -(1 + 2) / 2 - 3
    assert module.w.grad is None


@pytest.mark.parametrize("weigh", [int, float, torch.tensor, lambda n: torch.tensor([float(n)])])
def test_k2_a_window_is_the_weighted_mean(weigh):
    module = returning({1.0: weigh(10), 2.0: weigh(30), 3.0: weigh(7)})()
    assert fit(module, probe_batches(3), accumulate_grad_batches=2).global_step == 2
    assert module.w.item() == pytest.approx(-(1 * 10 + 2 * 30) / 40 - 3, abs=1e-6)


@pytest.mark.parametrize("weigh", [float, torch.tensor])
def test_a_weight_of_nothing_adds_nothing(weigh):
    module = returning({1.0: weigh(0), 2.0: weigh(0), 3.0: weigh(0), 4.0: weigh(2)})()
    fit(module, probe_batches(4), accumulate_grad_batches=2)
    assert module.w.item() == -4.0


def test_c5_tokens_count_as_often_as_they_are():
    class Tokens(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def training_step(self, batch):
            loss = (batch * self.w).mean()
            self.log("loss", loss.detach(), on_step=True)
            return {"loss": loss, "weight": batch.numel()}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    module = Tokens()
    fit(module, [torch.ones(10), torch.zeros(100)], accumulate_grad_batches=2)
    assert module.w.item() == pytest.approx(1 - 10 / 110, abs=1e-6)
    for accumulate in (1, 2, 4):
        seen = []
        watch = at("after_step")(lambda loop, seen=seen: seen.append(loop.metrics.take_step()))
        module = Tokens()
        module.w.data.fill_(1.0)
        with torch.no_grad():
            data = [torch.ones(5)] * 4
        trainer = Trainer([BARE, watch], accumulate_grad_batches=accumulate)
        module.configure_optimizers = lambda module=module: torch.optim.SGD(module.parameters(), lr=0.0)
        trainer.fit(module, data)
        assert seen == [{"loss": 1.0}] * (4 // accumulate)


@pytest.mark.parametrize("data", [probe_batches, lambda: iter(probe_batches())], ids=["sized", "unsized"])
def test_what_is_held_when_the_run_stops_is_the_mean_of_what_is_there(data):
    module = Probe()
    stop = at("after_batch", batch_idx=5)(lambda loop: loop.stop("enough"))
    loop = fit(module, data(), stop, accumulate_grad_batches=4, max_epochs=3)
    assert (loop.status, loop.stop_reason, loop.epoch, loop.batch_idx) == ("stopped", "enough", 0, 6)
    assert (loop.global_step, module.w.item(), module.w.grad) == (2, -(2.5 + 5.5), None)
    assert loop.epoch_finished is False


def test_the_end_of_an_epoch_that_is_asked_for_is_an_epochs_end():
    module = Probe()
    end = at("after_batch", batch_idx=2)(lambda loop: loop.end_epoch("long enough"))
    finished = []
    watch = at("after_epoch")(lambda loop: finished.append((loop.epoch, loop.epoch_finished, loop.end_epoch_reason)))
    loop = fit(module, probe_batches(), end, watch, accumulate_grad_batches=2, max_epochs=2)
    assert (loop.status, loop.epoch, loop.global_step, loop.total_batches) == ("finished", 2, 4, 6)
    assert module.w.item() == -2 * (1.5 + 3)
    assert finished == [(0, True, "long enough"), (1, True, "long enough")]


def test_a_stop_waits_for_whoever_delays_it_and_is_not_lost():
    class Wait(Plugin):
        name = "wait"

        @hookimpl
        def may_stop(self, loop):
            return loop.total_batches >= 4

    stop = at("after_batch", total_batches=0)(lambda loop: loop.stop("enough"))
    loop = fit(Probe(), probe_batches(), stop, Wait())
    assert (loop.total_batches, loop.stop_reason, loop.status) == (4, "enough", "stopped")


def test_an_interrupt_waits_for_nobody():
    class Wait(Plugin):
        name = "wait"

        @hookimpl
        def may_stop(self):
            return False

    interrupt = at("after_batch", total_batches=1)(lambda loop: loop.interrupt("signal"))
    recorder = Recorder()
    loop = fit(Probe(), probe_batches(), interrupt, Wait(), recorder)
    assert (loop.total_batches, loop.stop_reason, loop.status) == (2, "signal", "interrupted")
    assert recorder.events[-4:] == ["after_epoch", "on_interrupt", "after_fit", "teardown"]


def test_a_stop_that_is_withdrawn_is_none_and_others_stand():
    ask = at("after_batch", batch_idx=1)(lambda loop: (loop.stop("a"), loop.stop("a"), loop.withdraw_stop("a")))
    loop = fit(Probe(), probe_batches(4), ask)
    assert (loop.total_batches, loop.stop_reason, loop.status) == (4, None, "finished")
    ask = at("after_batch", batch_idx=1)(lambda loop: (loop.stop("a"), loop.stop("b"), loop.withdraw_stop("a")))
    loop = fit(Probe(), probe_batches(4), ask)
    assert (loop.total_batches, loop.stop_reason, loop.status) == (2, "b", "stopped")


def test_a_stop_before_the_first_batch():
    loop = fit(Probe(), probe_batches(), at("before_fit")(lambda loop: loop.stop("early")))
    assert (loop.total_batches, loop.epoch, loop.status) == (0, 0, "stopped")


def test_c71_loaders_of_unknown_length():
    module = Probe()
    loop = fit(module, iter(probe_batches(3)))
    assert (loop.total_batches, loop.epoch, loop.num_batches, loop.is_last_batch) == (3, 1, None, False)
    with pytest.warns(UserWarning, match="^the training data gave no batch$") as warned:
        loop = fit(Probe(), iter([]), max_epochs=3)
    assert len(warned) == 1
    assert (loop.global_step, loop.status, loop.stop_reason) == (0, "stopped", "the training data gave no batch")
    with pytest.warns(UserWarning, match="gave no batch again; a generator gives its batches once"):
        loop = fit(Probe(), iter(probe_batches(2)), max_epochs=3)
    assert loop.global_step == 2


class Evaluated(Probe):
    """Logs each batch that it is evaluated on, and predicts it."""

    def validation_step(self, batch):
        self.seen.append(batch.item())
        self.log("mean", batch)

    test_step = validation_step

    def predict_step(self, batch):
        return batch.item()


def test_a_batch_that_is_none_is_passed_over_in_every_stage():
    one, two, three = probe_batches(3)
    data = [None, one, None, two, three, None]
    module = Evaluated()
    fit(module, data, accumulate_grad_batches=2)
    assert (module.w.item(), module.seen) == (-1.5 - 3.0, [1.0, 2.0, 3.0])
    for stage in ("validate", "test"):
        module = Evaluated()
        assert getattr(Trainer(["-*"]), stage)(module, data) == {"mean": 2.0}
        assert module.seen == [1.0, 2.0, 3.0]
    assert Trainer(["-*"]).predict(module, data) == [None, 1.0, None, 2.0, 3.0, None]
    module = Evaluated()
    Trainer(["-*", "validation"], num_sanity_val_steps=0).fit(module, [one], data)
    assert module.seen == [1.0, 1.0, 2.0, 3.0]


def test_gradients_of_before_are_not_used_and_none_are_left():
    module = Probe()
    module.w.grad = torch.tensor(100.0)
    fit(module, probe_batches(2))
    assert (module.w.item(), module.w.grad) == (-3.0, None)


def test_gradients_are_free_before_the_next_forward():
    kept, alive = [], []

    class Watch(Plugin):
        name = "watch"

        @hookimpl
        def after_step(self, loop):
            kept.extend(weakref.ref(gradient) for gradient in loop.gradients)

        @hookimpl
        def after_batch(self, loop):
            alive.append(sum(gradient() is not None for gradient in kept))

    fit(TinyClassifier(), classification_batches(3), Watch())
    assert (len(kept), alive) == (12, [0, 0, 0])


def test_steps_that_are_held_for_ever_are_taken_at_the_epochs_end():
    hold = type("Hold", (Plugin,), {"name": "hold", "hold_step": hookimpl(lambda self: True)})
    module = Probe()
    assert fit(module, probe_batches(4), hold, max_epochs=2).global_step == 2
    assert module.w.item() == -2 * (1 + 2 + 3 + 4) / 4


def test_a_loss_that_a_plugin_takes_away_contributes_nothing():
    def drop(loop):
        loop.loss = None

    module = Probe()
    assert (
        fit(module, probe_batches(4), at("after_forward", batch_idx=1)(drop), accumulate_grad_batches=2).global_step
        == 2
    )
    assert module.w.item() == -1 - 3.5


def test_a_loss_that_a_plugin_replaces_is_the_one_that_counts():
    def double(loop):
        loop.loss = loop.loss * 2

    module = Probe()
    fit(module, probe_batches(2), at("after_forward")(double))
    assert module.w.item() == -6.0


def test_fitting_twice_starts_clean():
    module, trainer = Probe(), Trainer([BARE], accumulate_grad_batches=2, max_epochs=2)
    results = [trainer.fit(module, probe_batches(3)) for _ in range(2)]
    assert results[0] == results[1]
    assert module.w.item() == -2 * 2 * (1.5 + 3)


def test_a_runs_own_options_are_that_runs_alone():
    trainer = Trainer([BARE], max_epochs=1)
    assert trainer.fit(Probe(), probe_batches(2), max_epochs=3).epoch == 3
    assert trainer.fit(Probe(), probe_batches(2)).epoch == 1


def test_evaluation_inside_a_window_touches_nothing():
    class Evaluated(Probe):
        def validation_step(self, batch):
            assert not torch.is_grad_enabled()
            assert not self.training
            self.log("val", batch * self.w)
            torch.rand(3)

    def look(loop):
        evaluate(loop, "validate")

    module, plain = Evaluated(), Evaluated()
    trainer = Trainer([BARE, at("after_batch")(look)], accumulate_grad_batches=4)
    state = torch.get_rng_state()
    trainer.fit(module, probe_batches(), probe_batches(2))
    assert torch.equal(torch.get_rng_state(), state)
    fit(plain, probe_batches(), accumulate_grad_batches=4)
    assert module.w.item() == plain.w.item() == -18.5
    assert module.training


# ------------------------------------------------------------------------------------------------------------- numerics


class Dropping(TinyClassifier):
    """Draws random numbers in training."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self.net.insert(1, nn.Dropout(0.5))
        self.optimizer = optimizer
        self.evaluations = 0

    def training_step(self, batch, batch_idx):
        self.evaluations += 1
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return self.optimizer(self.parameters())


def twins(optimizer: Any) -> tuple[Dropping, Dropping]:
    pair = []
    for _ in range(2):
        torch.manual_seed(0)
        pair.append(Dropping(optimizer))
    return pair[0], pair[1]


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_equals_a_plain_loop_bit_for_bit(optimizer):
    data = classification_batches(7)
    ours, plain = twins(optimizer)
    torch.manual_seed(1)
    fit(ours, data, max_epochs=3)
    drawn = torch.rand(())
    torch.manual_seed(1)
    stepping = plain.configure_optimizers()
    for _ in range(3):
        for index, batch in enumerate(data):
            stepping.zero_grad()
            plain.training_step(batch, index).backward()
            stepping.step()
    assert_equal(ours, plain)
    assert torch.equal(drawn, torch.rand(()))


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters, lr=0.5, max_iter=6, history_size=5)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_lbfgs_equals_plain_torch_on_the_mean_of_the_window(accumulate, line_search):
    data = classification_batches(8)
    pair = twins(lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=6, line_search_fn=line_search))
    ours, plain = (module.eval() for module in pair)
    with pytest.warns(UserWarning, match="eval mode"):
        loop = fit(ours, data, accumulate_grad_batches=accumulate, max_epochs=2)
    stepping = plain.configure_optimizers()
    for _ in range(2):
        for start in range(0, 8, accumulate):

            def closure(window=data[start : start + accumulate]):
                stepping.zero_grad()
                losses = [plain.training_step(batch, 0) / accumulate for batch in window]
                for loss in losses:
                    loss.backward()
                return sum(loss.detach() for loss in losses)

            stepping.step(closure)
    assert_equal(ours, plain)
    assert ours.evaluations == plain.evaluations
    assert loop.global_step == 2 * 8 // accumulate


def test_lbfgs_draws_anew_in_each_evaluation_as_plain_torch_does():
    data = classification_batches(3)
    ours, plain = twins(lbfgs)
    torch.manual_seed(1)
    fit(ours, data)
    torch.manual_seed(1)
    stepping = plain.configure_optimizers()
    for batch in data:

        def closure(batch=batch):
            stepping.zero_grad()
            loss = plain.training_step(batch, 0)
            loss.backward()
            return loss

        stepping.step(closure)
    assert_equal(ours, plain)


def test_a_replayed_batch_is_logged_once():
    class Logging(Dropping):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("n", 1.0, on_epoch=True, reduce="sum")
            return loss

    module = Logging(lbfgs)
    loop = fit(module, classification_batches(3))
    assert loop.metrics.latest["n"] == 3.0
    assert module.evaluations > 3


def test_a_loss_that_vanishes_when_it_is_asked_for_again_is_told():
    class Vanishing(Dropping):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss if self.evaluations == 1 else None

    with pytest.raises(ValueError, match="gave a loss at first and None when it was run again"):
        fit(Vanishing(lbfgs), classification_batches(1))


def test_a_run_with_every_plugin_left_out_trains():
    data = classification_batches(30)
    torch.manual_seed(0)
    module = TinyClassifier()
    trainer = Trainer(["-*"])
    assert trainer.plugins == []

    def loss():
        with torch.no_grad():
            return sum(nn.functional.cross_entropy(module(x), y).item() for x, y in data)

    before = loss()
    result = trainer.fit(module, data)
    assert (result.status, result.epoch, result.global_step) == ("finished", 1, 30)
    assert loss() < before / 2


def test_a_plain_nn_module_serves_as_well():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def training_step(self, batch):
            return {"loss": batch * self.w, "anything": "else"}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    module = Plain()
    fit(module, probe_batches(3))
    assert module.w.item() == -6.0
