"""Optimizers that evaluate the loss several times a step, as sharpness-aware minimization does, against loops by hand."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing.ranks import run_ranks, values_of

RHO, LR = 0.5, 0.1


class Twice(Optimizer):
    """SAM that calls its closure for the gradient at the weights and for the one at the climbed weights."""

    momentum = 0.5

    def __init__(self, params):
        super().__init__(params, {})
        self.base = SGD(self.param_groups, lr=LR, momentum=self.momentum)

    def evaluate(self, closure):
        with torch.enable_grad():
            return closure()

    @torch.no_grad()
    def climb(self, grads):
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        return [grad * (RHO / (norm + 1e-12)) for grad in grads]

    def step(self, closure=None):
        assert closure is not None, "needs a closure"
        loss = self.evaluate(closure)
        self.descend(closure)
        return loss

    @torch.no_grad()
    def descend(self, closure):
        own = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        old = [p.clone() for p in own]
        for p, e in zip(own, self.climb([p.grad for p in own]), strict=True):
            p.add_(e)
        self.forget(own)
        self.evaluate(closure)
        for p, before in zip(own, old, strict=True):
            p.copy_(before)
        self.base.step()

    def forget(self, own):
        pass


class Needs(Twice):
    """The same, with a closure that step cannot go without."""

    def step(self, closure):
        return super().step(closure)


class Papers(Twice):
    """As the code of the paper has it: the first gradient is there before the step, and is dropped after the climb."""

    def step(self, closure=None):
        assert closure is not None, "needs a closure"
        self.descend(closure)

    def forget(self, own):
        for p in own:
            p.grad = None


KINDS = [Twice, Needs, Papers]


class Square(Module):
    def __init__(self, kind, start=3.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))
        self.kind, self.calls = kind, 0

    def loss(self, batch):
        self.calls += 1
        return batch * self.w.square()

    def configure_optimizers(self):
        return self.kind(self.parameters())

    def training_step(self, batch):
        return self.loss(batch)


class SquareByClosure(Square):
    """The same, stepped by its own training_step."""

    automatic_optimization = False

    def training_step(self, batch, loop, manual):
        optimizer = loop.optimizers[0]

        def closure():
            optimizer.zero_grad()
            loss = self.loss(batch)
            manual.backward(loss)
            return loss

        if self.kind is Papers:
            closure()
        optimizer.step(closure)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("square", [Square, SquareByClosure])
@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_ends_where_the_algorithm_does(kind, square, accumulate):
    module = square(kind)
    with pytest.warns(UserWarning, match="is more than") if accumulate > 1 else nullcontext():
        result = Trainer(accumulate_grad_batches=accumulate).fit(module, [torch.tensor(1.0)])
    assert module.w.item() == pytest.approx(2.3, rel=1e-6)  # 3 - 0.1 * 2 * (3 + 0.5)
    assert (module.calls, result.global_step) == (2, 1)


class Net(Module):
    """With statistics and random numbers, of which an evaluation too many would be seen."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))
        self.kind = kind

    def loss(self, batch):
        return self.net(batch).float().square().mean()

    def training_step(self, batch, loop):
        return self.loss(batch[loop.world.rank] if batch.ndim == 3 else batch)

    def configure_optimizers(self):
        return self.kind(self.parameters())


class ByClosure(Net):
    """The same, stepped by its own training_step."""

    automatic_optimization = False

    def training_step(self, batch, loop, manual):
        def closure():
            loop.optimizers[0].zero_grad()
            loss = self.loss(batch)
            manual.backward(loss)
            return loss

        if self.kind is Papers:
            closure()
        loop.optimizers[0].step(closure)


def batches(count=5, ranks=0):
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(count, *([ranks] if ranks else []), 6, 3, generator=generator))


def by_hand(module, data, accumulate=1, clip=None, around=nullcontext):
    optimizer = module.configure_optimizers()
    for start in range(0, len(data), accumulate):
        window = data[start : start + accumulate]

        def closure(window=window):
            optimizer.zero_grad()
            for batch in window:
                with around():
                    loss = module.loss(batch)
                (loss / len(window)).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            return loss

        if type(optimizer) is Papers:
            closure()
        optimizer.step(closure)
    return module.state_dict()


def assert_same(one, other, **tolerance):
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_that_switches_statistics_at_the_module_has_the_statistics_of_its_own_evaluations(accumulate):
    class Stops(Twice):
        def step(self, closure=None):
            norm.momentum = 0.1
            loss = self.evaluate(closure)
            norm.momentum = 0.0
            self.descend(closure)
            return loss

    ours, theirs = Net(Stops), Net(Stops)
    for net in (ours, theirs):
        net.net[2] = nn.Identity()
    norm = ours.net[1]
    Trainer(["-*"], accumulate_grad_batches=accumulate).fit(ours, batches(6))
    norm = theirs.net[1]
    expected = by_hand(theirs, batches(6), accumulate)
    expected.pop("net.1.num_batches_tracked")
    assert_same(expected, ours.state_dict())


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_the_algorithm_by_hand_to_the_bit(kind, accumulate, clip):
    ours, theirs = Net(kind), Net(kind)
    torch.manual_seed(1)
    Trainer(["-*"], accumulate_grad_batches=accumulate, gradient_clip_val=clip).fit(ours, batches())
    torch.manual_seed(1)
    assert_same(ours.state_dict(), by_hand(theirs, batches(), accumulate, clip))


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_so_does_a_training_step_that_gives_its_own_closure(kind, clip):
    ours, theirs = ByClosure(kind), Net(kind)
    torch.manual_seed(1)
    Trainer(["-*", "manual_optimization"], gradient_clip_val=clip).fit(ours, batches())
    torch.manual_seed(1)
    assert_same(ours.state_dict(), by_hand(theirs, batches(), 1, clip))


@pytest.mark.parametrize("net", [Net, ByClosure])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_in_mixed_precision_each_evaluation_is_unscaled(kind, net, precision):
    ours, theirs = net(kind), Net(kind)
    torch.manual_seed(1)
    plugins = ["-*", *(["manual_optimization"] if net is ByClosure else [])]
    scale = {"precision_init_scale": 2.0**8} if precision == "16-mixed" else {}
    result = Trainer(plugins, precision=precision, **scale).fit(ours, batches())
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float16
    torch.manual_seed(1)
    by_hand(theirs, batches(), around=lambda: torch.autocast("cpu", dtype))
    assert result.global_step == 5
    assert_same(ours.state_dict(), theirs.state_dict(), rtol=2e-2, atol=2e-3)


def test_an_evaluation_that_overflows_in_float16_is_made_again_with_a_smaller_scale():
    class steep(Square):
        def loss(self, batch):
            return super().loss(batch) if self.w.item() <= 3 else torch.nan_to_num(self.w * 0) + self.climbed()

        def climbed(self):
            self.calls += 1
            return (self.w.half() * 1).float().square()

    module = steep(Twice)
    trainer = Trainer(["-*"], precision="16-mixed", precision_init_scale=2.0**14)
    result = trainer.fit(module, [torch.tensor(1.0)])
    assert module.calls > 2  # 7 * 2 ** 14 is more than float16 can hold
    assert (result.global_step, module.w.item()) == (1, pytest.approx(2.3, rel=1e-3))


def test_a_plugin_sees_the_gradient_of_each_evaluation_and_logs_are_those_of_the_first():
    class seen(Plugin):
        name = "seen"

        def validate(self):
            self.gradients = []

        @hookimpl
        def before_step(self, loop):
            self.gradients += [gradient.item() for gradient in loop.gradients]

    class logs(Square):
        def training_step(self, batch, loop):
            loss = self.loss(batch)
            loop.log("loss", loss, on_epoch=True, reduce="sum")
            return loss

    plugin, module = seen(), logs(Twice)
    result = Trainer(["-*", plugin]).fit(module, [torch.tensor(1.0)])
    assert plugin.gradients == [6.0, 7.0]
    assert result.metrics["loss"] == 9.0


def test_a_step_that_a_plugin_calls_off_in_its_middle_is_an_error():
    class off(Plugin):
        name = "off"

        @hookimpl
        def before_step(self, loop):
            if loop.gradients[0] > 6.5:
                loop.skip_step("too steep")

    for square in (Square, SquareByClosure):
        with pytest.raises(RuntimeError, match=r"\(too steep\), and Twice is in the middle of it"):
            Trainer(["-*", "manual_optimization", off]).fit(square(Twice), [torch.tensor(1.0)])
    result = Trainer(["-*", off]).fit(module := Square(Twice, start=4.0), [torch.tensor(1.0)])
    assert (result.global_step, module.w.item()) == (0, 4.0)  # it had not begun


def test_torchs_own_are_given_no_closure_and_no_window_is_kept_for_them():
    class kept(Plugin):
        name = "kept"

        def validate(self):
            self.moments = []

        @hookimpl
        def before_step(self, loop):
            self.moments.append(len(loop.window.replays))

    for kind, expected in ((lambda p: SGD(p, lr=0.1), [0]), (Twice, [1, 1])):
        plugin = kept()
        Trainer(["-*", plugin]).fit(Square(kind), [torch.tensor(1.0)])
        assert plugin.moments == expected


class Once(SGD):
    """An optimizer of somebody else's that takes a closure and calls it as torch's do."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        super().step()
        return loss


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", [Once, Twice, Papers])
def test_beside_others_after_one_loss_each_steps_as_by_hand_in_the_order_in_which_they_are_given(kind, first):
    class two(Net):
        def __init__(self, kind):
            super().__init__(kind)
            self.net[2] = nn.Identity()
            self.calls = 0

        def loss(self, batch):
            self.calls += 1
            return super().loss(batch)

        def configure_optimizers(self):
            given = {"lr": LR} if self.kind is Once else {}
            optimizers = [self.kind(self.net[0].parameters(), **given), SGD(self.net[4].parameters(), lr=LR)]
            return optimizers if first else optimizers[::-1]

    ours, theirs = two(kind), two(kind)
    Trainer(["-*"]).fit(ours, batches())
    optimizers = theirs.configure_optimizers()

    for batch in batches():

        def closure(batch=batch):
            theirs.zero_grad()
            loss = theirs.loss(batch)
            loss.backward()
            return loss

        closure()
        for optimizer in optimizers:
            if type(optimizer) is kind and kind is not Once:
                # what it has gathered is its first evaluation
                optimizer.descend(closure)
            else:
                optimizer.step()
    assert ours.calls == theirs.calls == 5 * (1 if kind is Once else 2)
    assert_same(ours.state_dict(), theirs.state_dict())


def test_a_run_that_is_resumed_inside_a_window_goes_through_all_of_it_again(tmp_path):
    class stop(Plugin):
        name = "stop"
        last = None

        @hookimpl
        def after_batch(self, loop):
            if loop.batch_idx == self.last:
                loop.stop("enough")

    def trained(**options):
        module = Net(type("Stateless", (Twice,), {"momentum": 0.0}))  # what base keeps is in no state_dict
        module.net[2] = nn.Identity()
        Trainer([stop], accumulate_grad_batches=4, default_root_dir=tmp_path, **options).fit(module, batches(8))
        return module.state_dict()

    whole = trained()
    stop.last = 5
    trained(checkpoint_dir=tmp_path / "kept")
    stop.last = None
    assert_same(trained(resume=tmp_path / "kept"), whole)


def distributed(strategy):
    ended = {}
    for kind in (Twice, Papers):
        for accumulate in (1, 2):
            module = Net(kind)
            module.net[1], module.net[2] = nn.Identity(), nn.Identity()
            Trainer(["-*"], strategy=strategy, accumulate_grad_batches=accumulate).fit(module, batches(5, 2))
            ended[kind.__name__, accumulate] = module.state_dict()
    return ended


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_climb_and_descend_by_the_mean_of_their_gradients(strategy):
    class both(Net):
        def loss(self, batch):
            return (super().loss(batch[0]) + super().loss(batch[1])) / 2

    first, second = values_of(run_ranks(distributed, 2, strategy))
    for (name, accumulate), state in first.items():
        theirs = both({kind.__name__: kind for kind in KINDS}[name])
        theirs.net[1], theirs.net[2] = nn.Identity(), nn.Identity()
        assert_same(state, by_hand(theirs, batches(5, 2), accumulate), rtol=0, atol=2e-6)
        assert_same(state, second[name, accumulate])
