import functools

import pytest
import torch

from lightloop import Trainer
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches

ONLY = {"plugins": ["-*", "module_hooks", "lr_schedule"]}


def fit(module, batches=4, **options):
    return Trainer(**ONLY, **options).fit(module, probe_batches(batches))


def override(name, function, base=Probe, **optimizer):
    return type("Overriding", (base,), {name: function})(**optimizer)


@pytest.mark.parametrize(
    "signature",
    [
        "self, epoch, batch_idx, optimizer, optimizer_closure",
        "self, epoch, batch_idx, optimizer, optimizer_closure=None",
        "self, current_epoch, batch_idx, optimizer, optimizer_idx, second_order_closure=None",
        "self, epoch_nb, batch_nb, optimizer, optimizer_i, second_order_closure=None, on_tpu=False, using_lbfgs=False",
        "self, e, b, optimizer, c",
        "self, *arguments",
    ],
)
def test_optimizer_step_is_overridden_in_every_form(signature):
    space = {}
    body = "arguments[2].step()" if "*" in signature else "optimizer.step()"
    exec(f"def optimizer_step({signature}):\n self.steps.append(1)\n {body}", space)
    module = override("optimizer_step", space["optimizer_step"])
    module.steps = []
    result = fit(module, accumulate_grad_batches=2)
    assert (len(module.steps), result.global_step, module.w.item()) == (2, 2, -5.0)


def test_a_closure_gives_the_loss_once_more():
    losses = []

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        losses.append(float(optimizer.step(closure=optimizer_closure)))

    module = override("optimizer_step", optimizer_step)
    assert fit(module, 3).global_step == 3
    assert losses == [0.0, -2.0, -9.0]
    assert module.w.item() == -6.0


def test_a_step_that_the_module_does_not_take_is_skipped_and_not_counted():
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)

    user = Trainer(**ONLY)
    module = override("optimizer_step", optimizer_step)
    assert user.fit(module, probe_batches(4)).global_step == 2
    assert (user.loop.skipped_steps, module.w.item()) == (2, -6.0)


def test_a_warm_up_in_optimizer_step_equals_a_plain_loop():
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = min(1.0, (self.global_step + 1) / 4)
        optimizer.step(closure=optimizer_closure)

    module = override("optimizer_step", optimizer_step)
    fit(module)
    assert module.w.item() == -(1 / 4 + 2 * 2 / 4 + 3 * 3 / 4 + 4)


def test_lbfgs_gets_the_closure_that_replays():
    class Quadratic(Probe):
        def training_step(self, batch):
            return (batch * (self.w - 1)) ** 2

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=4)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(optimizer_closure)

    plain, module = Quadratic(), override("optimizer_step", optimizer_step, Quadratic)
    fit(plain)
    fit(module)
    assert module.w.item() == plain.w.item() != 0


def test_a_scheduler_finds_the_optimizer_as_it_was():
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step()

    class Scheduled(Probe):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            self.patched = vars(optimizer)["step"]
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    module = override("optimizer_step", optimizer_step, Scheduled)
    user = Trainer(**ONLY)
    user.fit(module, probe_batches(3))
    assert module.w.item() == -(1 + 2 / 2 + 3 / 4)
    assert vars(user.optimizers[0])["step"] is module.patched


@pytest.mark.parametrize("factor", [1, 2, 4])
@pytest.mark.parametrize("signature", ["loss", "use_amp, loss, optimizer", "trainer, loss, optimizer, optimizer_idx"])
def test_backward_is_overridden_and_the_window_is_still_the_mean(factor, signature):
    space = {}
    exec(f"def backward(self, {signature}):\n loss.backward()", space)
    module = override("backward", space["backward"])
    fit(module, 10, accumulate_grad_batches=factor)
    plain = Probe()
    fit(plain, 10, accumulate_grad_batches=factor)
    assert module.w.item() == pytest.approx(plain.w.item(), rel=1e-6)  # weighted before, not in, backward


def test_gradients_are_clipped_as_the_module_likes():
    given = []

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        given.append((gradient_clip_val, gradient_clip_algorithm))
        self.w.grad = self.w.grad.clamp(max=0.25)

    module = override("configure_gradient_clipping", configure_gradient_clipping)
    fit(module, 2, gradient_clip_val=0.5, gradient_clip_algorithm="value")
    assert (given, module.w.item()) == ([(0.5, "value")] * 2, -0.5)
    module = override("configure_gradient_clipping", configure_gradient_clipping)
    fit(module, 2)
    assert (given[2:], module.w.item()) == ([(None, "norm")] * 2, -0.5)


def test_the_plain_clipping_can_be_asked_for():
    def configure_gradient_clipping(self, optimizer, clip):
        if self.global_step == 1:
            clip()

    module = override("configure_gradient_clipping", configure_gradient_clipping)
    fit(module, 2, gradient_clip_val=0.5, gradient_clip_algorithm="value")
    assert module.w.item() == -1.5


def test_gradients_are_kept_where_the_module_does_not_drop_them():
    module = override("optimizer_zero_grad", lambda self, epoch, batch_idx, optimizer: None)
    fit(module, 3)
    assert module.w.item() == -(1 + 3 + 6)
    module = override(
        "optimizer_zero_grad", lambda self, epoch, batch_idx, optimizer, optimizer_idx: optimizer.zero_grad()
    )
    fit(module, 3)
    assert module.w.item() == -6.0


def test_training_step_end_makes_the_loss():
    class Split(Probe):
        def training_step(self, batch):
            return {"predicted": batch * self.w}

        def training_step_end(self, outputs):
            return 2 * outputs["predicted"]

    module = Split()
    fit(module, 3)
    assert module.w.item() == -12.0


def test_evaluation_step_ends_see_the_output_of_their_steps():
    class Evaluated(TinyClassifier):
        def validation_step(self, batch):
            return len(batch[0])

        test_step = validation_step

        def validation_step_end(self, output):
            self.log("samples", output, reduce="sum")

        def test_step_end(self, batch_parts):
            self.log("tested", batch_parts, reduce="sum")

    user = Trainer(**ONLY)
    assert user.validate(Evaluated(), classification_batches(3)) == {"samples": 24}
    assert user.test(Evaluated(), classification_batches(2)) == {"tested": 16}


def test_evaluation_step_ends_are_told_the_batch_and_loader_of_the_pass():
    seen = []

    class Evaluated(TinyClassifier):
        def validation_step(self, batch):
            return batch

        def validation_step_end(self, output, batch_idx, dataloader_idx):
            seen.append((batch_idx, dataloader_idx))

    loaders = {"a": classification_batches(2), "b": classification_batches(1)}
    Trainer(**ONLY, max_epochs=1).fit(Evaluated(), classification_batches(3), loaders, val_check_interval=2)
    assert seen[:3] == [(0, 0), (1, 0), (0, 1)]  # in the middle of an epoch
    assert set(seen) == set(seen[:3])


def test_partials_lambdas_bound_methods_and_none_count_as_what_they_are():
    steps = []

    class Mixed(Probe):
        optimizer_zero_grad = None
        backward = None

        def __init__(self):
            super().__init__()
            self.optimizer_step = functools.partial(self.step_it, "partial")
            self.training_step_end = lambda loss: loss * 2

        def step_it(self, word, epoch, batch_idx, optimizer, optimizer_closure):
            steps.append(word)
            optimizer.step()

    module = Mixed()
    fit(module, 2)
    assert (steps, module.w.item()) == (["partial"] * 2, -6.0)


def test_a_module_without_overrides_does_not_meet_the_plugin():
    user = Trainer(**ONLY)
    user.fit(Probe(), probe_batches(1))
    plugin, hook = user.plugin("module_hooks"), user.loop.hook
    assert all(
        hook._has_left(plugin, name)
        for name in ("forward", "evaluate_batch", "backward", "before_step", "step", "zero_grad")
    )


def test_overrides_run_in_16_bits_once_per_unscaled_step():
    class Overriding(TinyClassifier):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer.step()

        def backward(self, loss):
            loss.backward()

    def weights(kind):
        torch.manual_seed(0)
        module = kind()
        Trainer(precision="16-mixed", **ONLY).fit(module, classification_batches(4))
        return [parameter.detach().clone() for parameter in module.parameters()]

    for one, other in zip(weights(Overriding), weights(TinyClassifier), strict=True):
        assert torch.equal(one, other)
