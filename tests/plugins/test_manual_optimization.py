import json
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, Rows, probe_batches
from lightloop_plugins.manual_optimization import MANUAL


class Events(Plugin):
    name = "events"

    def validate(self):
        self.events = []

    def add(self, loop, what):
        self.events.append((what, loop.optimizer_idx, loop.global_step))

    @hookimpl
    def before_step(self, loop):
        self.add(loop, "before_step")

    @hookimpl
    def after_step(self, loop):
        self.add(loop, "after_step")

    @hookimpl
    def on_step_skipped(self, loop):
        self.add(loop, "skipped")


class Pair(Module):
    """Two weights, each with a raw optimizer that training_step steps itself."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(2))

    def training_step(self, batch, loop):
        for w, optimizer in zip(self.w, loop.optimizers, strict=True):
            optimizer.zero_grad()
            (batch * w).backward()
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD([w], lr=1.0) for w in self.w]


def test_c31_steps_of_the_raw_optimizers_are_counted_by_rounds():
    module, events = Pair(), Events()
    trainer = Trainer(plugins=[events], max_steps=5, max_epochs=-1)
    result = trainer.fit(module, probe_batches(10))
    assert (result.global_step, trainer.loop.total_batches, trainer.loop.optimizer_steps) == (5, 5, [5, 5])
    assert [w.item() for w in module.w] == [-15.0, -15.0]
    assert events.events[:5] == [
        ("before_step", 0, 0),
        ("after_step", 0, 1),
        ("before_step", 1, 1),
        ("after_step", 1, 1),
        ("before_step", 0, 1),
    ]


def test_c31_steps_of_two_optimizers_side_by_side_count_once():
    class automatic(Pair):
        automatic_optimization = True

        def training_step(self, batch, optimizer_idx):
            return batch * self.w[optimizer_idx]

    trainer = Trainer(max_steps=5, max_epochs=-1)
    result = trainer.fit(automatic(), probe_batches(10))
    assert (result.global_step, trainer.loop.total_batches, trainer.loop.optimizer_steps) == (5, 5, [5, 5])


def test_an_optimizer_that_steps_again_begins_another_round():
    class critic(Pair):
        def training_step(self, batch, loop):
            for index in (0, 0, 0, 1):
                loop.optimizers[index].zero_grad()
                (batch * self.w[index]).backward()
                loop.optimizers[index].step()

    trainer = Trainer()
    result = trainer.fit(critic(), probe_batches(4))
    assert (result.global_step, trainer.loop.optimizer_steps) == (12, [12, 4])


def test_a_batch_that_steps_nothing_counts_nothing():
    class seldom(Pair):
        def training_step(self, batch, batch_idx, loop):
            if batch_idx % 2:
                super().training_step(batch, loop)

    result = Trainer().fit(seldom(), probe_batches(5))
    assert result.global_step == 2


def test_gradients_are_clipped_and_measured_before_a_raw_step():
    class module_(Pair):
        def training_step(self, batch, loop):
            super().training_step(batch, loop)
            self.gradients = [w.grad.item() for w in self.w]

    module = module_()
    Trainer(gradient_clip_val=2.0).fit(module, [torch.tensor(8.0)])
    assert module.gradients == pytest.approx([2.0, 2.0])
    assert [w.item() for w in module.w] == pytest.approx([-2.0, -2.0])


def test_raw_steps_equal_a_plain_loop_bit_for_bit():
    class gan(Module):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.g, self.d = nn.Linear(2, 3), nn.Linear(3, 1)

        def training_step(self, batch, loop):
            self.step(batch, *loop.optimizers)

        def step(self, batch, g, d):
            real, noise = batch
            fake = self.g(noise)
            d.zero_grad()
            (F.softplus(-self.d(real)) + F.softplus(self.d(fake.detach()))).mean().backward()
            d.step()
            g.zero_grad()
            F.softplus(-self.d(fake)).mean().backward()
            g.step()

        def configure_optimizers(self):
            return [torch.optim.Adam(self.g.parameters(), 0.01), torch.optim.Adam(self.d.parameters(), 0.02)]

    data = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(6)]
    ours, plain = gan(), gan()
    trainer = Trainer()
    result = trainer.fit(ours, data)
    optimizers = plain.configure_optimizers()
    for batch in data:
        plain.step(batch, *optimizers)
    assert (result.global_step, trainer.loop.optimizer_steps) == (6, [6, 6])
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


class OwnProbe(Probe):
    """A probe that goes backward and steps by the helper."""

    automatic_optimization = False

    def training_step(self, batch, manual):
        manual.backward(super().training_step(batch))
        if manual.should_step():
            manual.step()


class RawProbe(OwnProbe):
    """The same, with torch's own step."""

    def training_step(self, batch, manual, loop):
        manual.backward(Probe.training_step(self, batch))
        if manual.should_step():
            loop.optimizers[0].step()
            loop.optimizers[0].zero_grad()


@pytest.mark.parametrize("kind", [OwnProbe, RawProbe])
@pytest.mark.parametrize("batches", [probe_batches, lambda: iter(probe_batches())], ids=["sized", "unsized"])
def test_accumulation_is_the_mean_over_the_window_also_over_a_short_one(kind, batches):
    module = kind()
    result = Trainer(accumulate_grad_batches=4).fit(module, batches())
    assert (result.global_step, module.w.item()) == (3, -18.5)


def test_several_losses_of_a_batch_add_up():
    class module_(Probe):
        automatic_optimization = False

        def training_step(self, batch, manual):
            manual.backward(batch * self.w)
            manual.backward(10 * batch * self.w)
            if manual.should_step():
                manual.step()

    module = module_()
    Trainer(accumulate_grad_batches=2).fit(module, probe_batches(3))
    assert module.w.item() == -(1.5 + 15) - (3 + 30)


def test_plain_backward_is_stepped_with_as_it_is():
    class module_(Probe):
        automatic_optimization = False

        def training_step(self, batch, manual):
            (batch * self.w).backward()
            if manual.should_step():
                manual.step()

    module = module_()
    result = Trainer(accumulate_grad_batches=2).fit(module, probe_batches(3))
    assert (result.global_step, module.w.item(), module.w.grad) == (2, -(1 + 2) - 3.0, None)


def test_what_nobody_stepped_is_stepped_when_the_epoch_ends():
    class module_(Probe):
        automatic_optimization = False

        def training_step(self, batch, batch_idx, manual):
            manual.backward(batch * self.w)
            if batch_idx % 2:
                manual.step()

    module = module_()
    result = Trainer().fit(module, probe_batches(3))
    assert (result.global_step, module.w.item()) == (2, -1.5 - 3.0)


def test_a_skipped_step_changes_nothing_and_is_not_counted():
    class veto(Plugin):
        name = "veto"

        @hookimpl
        def before_step(self, loop):
            if loop.batch_idx == 1:
                loop.skip_step("not this one")

    for kind in (OwnProbe, RawProbe):
        module, events = kind(), Events()
        trainer = Trainer(plugins=[veto(), events])
        result = trainer.fit(module, probe_batches(3))
        assert (result.global_step, module.w.item(), trainer.loop.skipped_steps) == (2, -4.0, 1)
        assert ("skipped", 0, 1) in events.events


def test_schedules_follow_their_own_optimizer():
    class module_(Pair):
        def training_step(self, batch, batch_idx, loop):
            for index in (0, 1) if batch_idx % 2 else (0,):
                loop.optimizers[index].zero_grad()
                (batch * self.w[index]).backward()
                loop.optimizers[index].step()

        def configure_optimizers(self):
            self.own = super().configure_optimizers()
            return [
                {
                    "optimizer": optimizer,
                    "lr_scheduler": {
                        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
                        "interval": "step",
                    },
                }
                for optimizer in self.own
            ]

    module = module_()
    Trainer().fit(module, probe_batches(4))
    assert [optimizer.param_groups[0]["lr"] for optimizer in module.own] == [0.5**4, 0.5**2]


def test_a_closure_is_evaluated_before_gradients_are_clipped():
    class module_(Probe):
        automatic_optimization = False

        def training_step(self, batch, loop):
            def closure():
                loop.optimizers[0].zero_grad()
                loss = batch * self.w + 3
                loss.backward()
                self.seen.append(1)
                return loss

            self.returned = loop.optimizers[0].step(closure)

    module = module_()
    Trainer(gradient_clip_val=1.0).fit(module, [torch.tensor(8.0)])
    assert (module.w.item(), module.seen, module.returned.item()) == (pytest.approx(-1.0), [1], 3.0)


def test_lbfgs_is_stepped_with_its_closure_and_counted_once():
    def minimise(w, optimizer, calls):
        def closure():
            optimizer.zero_grad()
            loss = (w - 3) ** 2
            loss.backward()
            calls.append(loss.item())
            return loss

        optimizer.step(closure)

    class module_(Probe):
        automatic_optimization = False

        def training_step(self, batch, loop):
            minimise(self.w, loop.optimizers[0], self.seen)

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)

    module, plain = module_(), module_()
    result = Trainer().fit(module, probe_batches(6))
    optimizer = plain.configure_optimizers()
    for _ in range(6):
        minimise(plain.w, optimizer, plain.seen)
    assert result.global_step == 6
    assert module.seen == plain.seen
    assert torch.equal(module.w, plain.w)

    class by_helper(module_):
        def training_step(self, batch, manual):
            manual.step()

    with pytest.raises(TypeError, match=r"LBFGS needs a closure: call optimizer.step\(closure\)"):
        Trainer().fit(by_helper(), probe_batches(1))


def test_toggled_leaves_other_parameters_alone_and_puts_flags_back():
    class module_(Pair):
        def training_step(self, batch, loop, manual):
            one, _ = loop.optimizers
            with manual.toggled(one):
                self.inside = [w.requires_grad for w in self.w]
                manual.backward(batch * self.w[0] * 2 + self.w[1], one)
            self.after = [w.requires_grad for w in self.w]
            self.gradients = [w.grad is not None for w in self.w]
            manual.step(one)

    module = module_()
    Trainer().fit(module, probe_batches(1))
    assert (module.inside, module.after, module.gradients) == ([True, False], [True, True], [True, False])
    assert [w.item() for w in module.w] == [-2.0, 0.0]


def test_with_several_optimizers_the_helper_must_be_told_which():
    class module_(Pair):
        def training_step(self, batch, manual):
            manual.backward(batch * self.w[0])

    with pytest.raises(ValueError, match="returned 2 optimizers; say which of them is meant"):
        Trainer().fit(module_(), probe_batches(1))


def test_bf16_and_16_mixed_go_the_same_way():
    class module_(Module):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 2)

        def training_step(self, batch, manual):
            manual.backward(self.net(batch).square().mean())
            manual.step()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class automatic(module_):
        automatic_optimization = True

        def training_step(self, batch):
            return self.net(batch).square().mean()

    data = [torch.randn(3, 4) for _ in range(4)]
    for precision in ("bf16-mixed", "16-mixed"):
        one, other = module_(), automatic()
        Trainer(precision=precision).fit(one, data)
        Trainer(precision=precision).fit(other, data)
        assert torch.equal(one.net.weight, other.net.weight)


def test_the_option_turns_it_on_and_frequencies_are_refused():
    class module_(Pair):
        automatic_optimization = True

    module = module_()
    assert Trainer(automatic_optimization=False).fit(module, probe_batches(3)).global_step == 3
    assert [w.item() for w in module.w] == [-6.0, -6.0]
    with pytest.raises(ValueError, match="optimizer_frequencies have no meaning"):
        Trainer(optimizer_frequencies=[1, 2]).fit(Pair(), probe_batches(3))


def test_hooks_are_taken_off_the_optimizers_and_the_trainer_pickles():
    module, trainer = Pair(), Trainer()
    trainer.fit(module, probe_batches(1))
    for optimizer in trainer.loop.optimizers:
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    assert trainer.loop.stash[MANUAL] is not None
    again = pickle.loads(pickle.dumps(trainer))
    assert again.fit(Pair(), probe_batches(2)).global_step == 2


def test_it_bows_out_of_an_automatic_run():
    trainer = Trainer()
    trainer.fit(Probe(), probe_batches(1))
    assert MANUAL not in trainer.loop.stash
    assert "manual" not in trainer.loop.step_arguments


@pytest.mark.parametrize("by_helper", [True, False])
def test_after_a_step_in_mixed_precision_the_rest_of_training_step_goes_on_with_the_new_weights(by_helper):
    class twice(Probe):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1, bias=False)
            self.layer.weight.data.fill_(1.0)

        def configure_optimizers(self):
            return torch.optim.SGD(self.layer.parameters(), lr=1.0)

        def training_step(self, batch, loop, manual):
            for _ in range(2):
                loss = self.layer(batch.reshape(1, 1)).float().square().sum() / 2
                manual.backward(loss)
                if by_helper:
                    manual.step()
                else:
                    loop.optimizers[0].step()
                    loop.optimizers[0].zero_grad()
                self.seen.append(loss.item())

    module = twice()
    Trainer(precision="bf16-mixed").fit(module, [torch.tensor(0.5)])
    assert module.seen == [0.125, 0.5 * (0.5 * 0.75) ** 2]
    assert module.layer.weight.item() == 0.75**2


class Evolved(Probe):
    """Changes its weight by itself, with no optimizer."""

    configure_optimizers = None

    def __init__(self, manual, returns=None):
        super().__init__()
        self.automatic_optimization, self.returns = not manual, returns

    def training_step(self, batch):
        with torch.no_grad():
            self.w -= batch
        self.log("x", batch)
        return self.returns and self.w * 1


@pytest.mark.parametrize("manual", [False, True])
def test_without_an_optimizer_each_batch_is_a_step_of_the_modules_own(manual):
    rows = Rows()
    trainer = Trainer(
        ["-*", "log_every", "manual_optimization", "lr_schedule", rows],
        log_every_n_steps=2,
        max_steps=5,
        terminate_on_nan=True,
        nonfinite="warn",
        gradient_clip_val=1.0,
        track_grad_norm=2,
        ema_decay=0.5,
        log_lr="step",
        accumulate_grad_batches=2,
    )
    module = Evolved(manual)
    result = trainer.fit(module, probe_batches(3))
    assert (module.w.item(), result.global_step, result.reason) == (-9.0, 5, "max_steps=5 reached")
    assert [(step, row.get("x")) for step, row in rows.rows] == [(1, 1.0), (2, 2.0), (4, 1.0), (5, 2.0)]


@pytest.mark.parametrize(("manual", "says"), [(True, 0), (False, 1)])
def test_that_nothing_is_trained_is_said_where_a_loss_is_returned_that_nothing_uses(manual, says):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Trainer(["-*", "manual_optimization"]).fit(Evolved(manual, returns=True), probe_batches(3))
    assert ["has no optimizer" in str(each.message) for each in said] == [True] * says


class Late(Probe):
    """Drops its gradients when it needs others, and not when it has stepped."""

    automatic_optimization = False
    every = 1

    def training_step(self, batch, batch_idx, loop):
        (optimizer,) = loop.optimizers
        if batch_idx % self.every == 0:
            optimizer.zero_grad()
        super().training_step(batch).backward()
        if batch_idx % self.every == self.every - 1:
            optimizer.step()


@pytest.mark.parametrize(
    ("every", "has"), [(1, [False] * 4), (2, [True, False, True, False]), (3, [True, True, False, True])]
)
def test_gradients_that_were_stepped_with_are_in_no_checkpoint_and_those_of_an_open_window_are(tmp_path, every, has):
    module = Late()
    module.every = every
    Trainer(
        ["-*", "manual_optimization", "checkpoint", "run_dir"],
        checkpoint_dir=tmp_path,
        save_every="1 batches",
        save_last=9,
    ).fit(module, probe_batches(4))
    states = [json.loads((path / "state.json").read_text()) for path in sorted(tmp_path.glob("step-*"))]
    assert [bool(state["ranks"][0]["gradients"]) for state in states] == has
