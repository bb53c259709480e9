"""A function of the user's is called with what its signature asks for: by name, else by position."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from lightloop import Key, Module, Stash, Trainer
from lightloop.testing import Probe, probe_batches
from lightloop.toolkit import Fixed, bind, defined, takes

ORDER = ("batch", "batch_idx")
ARGUMENTS = {
    "batch": "loop.batch",
    "batch_idx": "loop.batch_idx",
    "optimizer_idx": "loop.optimizer_idx",
    "epoch": lambda loop: loop.epoch,
    "loop": "loop",
}
LOOP = SimpleNamespace(batch="B", batch_idx=4, optimizer_idx=1, epoch=2)
ALL = {"batch": "B", "batch_idx": 4, "optimizer_idx": 1, "epoch": 2, "loop": LOOP}


def call(step, order=ORDER, **arguments):
    return bind(step, order, {**ARGUMENTS, **arguments}, needs=("batch",))(LOOP)


def decorated(step):
    @functools.wraps(step)
    def wrapper(*arguments, **named):
        return step(*arguments, **named)

    return wrapper


class Steps:
    def method(self, batch, batch_idx):
        return batch, batch_idx

    @staticmethod
    def static(batch, epoch):
        return batch, epoch

    @classmethod
    def of_class(cls, batch):
        return batch

    def __call__(self, batch, batch_idx):
        return batch, batch_idx


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (lambda batch: batch, "B"),
        (lambda anything: anything, "B"),
        (lambda _: _, "B"),
        (lambda batch, i: (batch, i), ("B", 4)),
        (lambda batch, _: (batch, _), ("B", 4)),
        (lambda x, y, /: (x, y), ("B", 4)),
        (lambda x, batch_idx: (x, batch_idx), ("B", 4)),
        (lambda batch_idx, batch: (batch_idx, batch), (4, "B")),
        (lambda epoch, batch: (epoch, batch), (2, "B")),
        (lambda x, i, epoch: (x, i, epoch), ("B", 4, 2)),
        (lambda x, epoch, batch_idx: (x, epoch, batch_idx), ("B", 2, 4)),
        (lambda x, epoch, i: (x, epoch, i), ("B", 2, 4)),  # the one argument that is left
        (lambda loop, x: (loop is LOOP, x), (True, "B")),  # what else would have the batch?
        (lambda epoch, b, i: (epoch, b, i), (2, "B", 4)),
        (lambda x, *, epoch: (x, epoch), ("B", 2)),
        (lambda x, batch_idx, /: (x, batch_idx), ("B", 4)),
        (lambda x, scale=0.5: (x, scale), ("B", 0.5)),
        (lambda x, logits=False, epoch=0: (x, logits, epoch), ("B", False, 2)),
        (lambda x, scale=0.5, epoch=0, /: (x, scale, epoch), ("B", 0.5, 2)),
        (lambda x, i, k=5: (x, i, k), ("B", 4, 5)),  # there is nothing else for its place
        (lambda x, *, k=5: (x, k), ("B", 5)),
        (lambda x, loop: (x, loop is LOOP), ("B", True)),
        (lambda *everything: everything, ("B", 4)),
        (lambda *everything, epoch: (everything, epoch), (("B", 4), 2)),
        (lambda x, *rest: (x, rest), ("B", (4,))),
        (lambda x, scale=0.5, *rest: (x, scale, rest), ("B", 0.5, ())),
        (lambda *everything, **named: (everything, named), (("B", 4), {})),
        (lambda **named: named, ALL),
        (lambda *, batch: batch, "B"),
        (lambda x, **named: (x, named), ("B", {k: v for k, v in ALL.items() if k != "batch"})),
        (lambda x, i, *, loop, **named: (i, named), (4, {"optimizer_idx": 1, "epoch": 2})),
        (Steps().method, ("B", 4)),
        (Steps.static, ("B", 2)),
        (Steps.of_class, "B"),
        (Steps(), ("B", 4)),
        (functools.partial(lambda scale, x, epoch: (scale, x, epoch), 3), (3, "B", 2)),
        (functools.partial(lambda scale, x, i: (scale, x, i), 3), (3, "B", 4)),
        (functools.partial(lambda x, epoch, scale: (x, epoch, scale), scale=3), ("B", 2, 3)),
        (decorated(lambda x, epoch: (x, epoch)), ("B", 2)),
        (decorated(lambda x, i: (x, i)), ("B", 4)),
        (len, 1),
    ],
)
def test_every_signature(step, result):
    assert call(step) == result


SEVERAL = (*ORDER, "optimizer_idx")


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (lambda x, i, o: (x, i, o), ("B", 4, 1)),
        (lambda x, optimizer_idx: (x, optimizer_idx), ("B", 1)),
        (lambda x, i, optimizer_idx: (x, i, optimizer_idx), ("B", 4, 1)),
        (lambda x, i, scale=0.5: (x, i, scale), ("B", 4, 0.5)),
        (lambda *everything: everything, ("B", 4, 1)),
        (lambda *everything, **named: (everything, named), (("B", 4, 1), {})),
        (lambda x, **named: (x, named["batch_idx"], named["optimizer_idx"]), ("B", 4, 1)),
    ],
)
def test_an_argument_that_is_there_in_some_runs_alone_goes_by_position_too(step, result):
    assert call(step, SEVERAL) == result


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (lambda x, i, o: (x, i, o), ("B", 4, 0)),
        (lambda x, i, k=5: (x, i, k), ("B", 4, 5)),
        (lambda x, i, optimizer_idx=5: (x, i, optimizer_idx), ("B", 4, 0)),
        (lambda *everything: everything, ("B", 4)),
    ],
)
def test_an_index_that_is_always_0_goes_only_to_who_needs_one(step, result):
    assert call(step, SEVERAL, optimizer_idx=Fixed(0)) == result


def test_what_a_step_takes_is_known():
    named = bind(lambda x, opt_idx: 0, ORDER, {**ARGUMENTS, "opt_idx": "loop.optimizer_idx"})
    by_place, without = bind(lambda x, i, o: 0, SEVERAL, ARGUMENTS), bind(lambda x, i: 0, SEVERAL, ARGUMENTS)
    assert [takes(step, "optimizer_idx") for step in (named, by_place, without)] == [True, True, False]


def test_the_signature_is_looked_at_once(monkeypatch):
    step = bind(lambda batch, epoch: (batch, epoch), ORDER, ARGUMENTS)
    monkeypatch.setattr("inspect.signature", None)
    assert [step(LOOP) for _ in range(2)] == [("B", 2)] * 2


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            lambda: None,
            r"<lambda>\(\) cannot be called: it must take batch\. It can take \(batch, batch_idx, optimizer_idx\) by",
        ),
        (lambda *, i: None, r"there is no argument 'i'.*by name also epoch, loop"),
        (lambda epoch: None, "it must take batch"),
        (lambda x, i, o, h: None, "there is no argument for 'x'|there is no argument for 'h'"),
        (
            lambda batch, epoch, i: None,
            r"'i' can be batch_idx by|'i' can be optimizer_idx by its place, or batch_idx, which no",
        ),
        (
            lambda batch, k=5: None,
            r"'k' can be batch_idx by its place, or keep 5: call it batch_idx, or write '\*, k=5' at",
        ),
        (lambda batch, mask=None: None, "'mask' can be batch_idx by its place, or keep None"),
        (lambda batch, i, o=0: None, "'o' can be optimizer_idx by its place, or keep 0"),
    ],
)
def test_what_cannot_be_called_or_in_two_ways_is_refused_at_once(step, text):
    with pytest.raises(TypeError, match=text):
        call(step, SEVERAL)


def test_an_argument_comes_from_a_path_and_not_from_code():
    for code in ("loop.piece + 1", "loop.a()", "0", "print", "loop.x if 1 else 2", "loop.", "loop["):
        with pytest.raises(
            ValueError, match=f"{code[:5]}.* is no path".replace("+", r"\+").replace("(", r"\(").replace("[", r"\[")
        ):
            bind(lambda batch: batch, ("batch",), {"batch": code})


class TwoSteps(Module):
    """Two optimizers, three loaders' worth of indices: what each step was given."""

    def __init__(self, training_step, validation_step=None):
        super().__init__()
        self.a, self.b = Probe(), Probe()
        self.given = []
        self.training_step = functools.partial(training_step, self)
        self.validation_step = functools.partial(validation_step, self) if validation_step else None

    def configure_optimizers(self):
        return [self.a.configure_optimizers(), self.b.configure_optimizers()]

    def loss(self, optimizer_idx):
        return (self.a, self.b)[optimizer_idx].w * 1.0


def positional(self, batch, i, opt_idx):
    self.given.append((i, opt_idx))
    return self.loss(opt_idx)


def starred(self, *args):
    self.given.append(args[1:])
    return self.loss(args[2])


def forwarding(self, *args, **kwargs):
    return positional(self, *args, **kwargs)


def by_name(self, **kwargs):
    self.given.append((kwargs["batch_idx"], kwargs["optimizer_idx"]))
    return self.loss(kwargs["optimizer_idx"])


@pytest.mark.parametrize("step", [positional, starred, forwarding, by_name])
def test_several_optimizers_and_loaders_by_position(step):
    seen = []
    validate = {
        positional: lambda self, batch, i, d: seen.append((i, d)),
        starred: lambda self, *args: seen.append(args[1:]),
        forwarding: lambda self, *args, **kwargs: seen.append((*args[1:], *kwargs)),
        by_name: lambda self, **kwargs: seen.append((kwargs["batch_idx"], kwargs["dataloader_idx"])),
    }[step]
    module, loaders = TwoSteps(step, validate), {"a": probe_batches(2), "b": probe_batches(1)}
    Trainer(plugins=["-*", "validation"], num_sanity_val_steps=0).fit(module, probe_batches(2), loaders)
    assert module.given == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert seen == [(0, 0), (1, 0), (0, 1)]
    assert (module.a.w.item(), module.b.w.item()) == (-2.0, -2.0)
    seen.clear()
    Trainer(plugins=["-*"]).validate(module, probe_batches(2))
    assert seen == {starred: [(0,), (1,)], forwarding: [(0,), (1,)]}.get(step, [(0, 0), (1, 0)])


def test_the_same_rules_hold_for_every_kind_of_step_and_for_one_optimizer():
    class Familiar(Probe):
        given = ()

        def training_step(self, batch, _):
            self.given += (("fit", _),)
            return super().training_step(batch)

        def test_step(self, b, i):
            self.given += (("test", i),)

        def predict_step(self, b, i, loader):
            self.given += (("predict", i, loader),)

    module, user = Familiar(), Trainer(plugins=["-*"])
    user.fit(module, probe_batches(2))
    user.test(module, probe_batches(1))
    user.predict(module, {"a": probe_batches(1), "b": probe_batches(1)})
    assert module.given == (("fit", 0), ("fit", 1), ("test", 0), ("predict", 0, 0), ("predict", 0, 1))
    assert module.w.item() == -3.0


def test_what_means_something_in_other_runs_is_not_filled_by_position():
    for name in ("hiddens", "manual", "dataloader_idx"):
        space = {}
        exec(f"def training_step(self, batch, {name}): return 0", space)
        with pytest.raises(
            TypeError, match=f"there is no argument '{name}': (plugin '.*' offers it and is not in|it is an)"
        ):
            Trainer().fit(type("Net", (Probe,), space)(), probe_batches(1))
    evaluated = type("Net", (Probe,), {"validation_step": lambda self, batch, optimizer_idx: None})
    with pytest.raises(TypeError, match="there is no argument 'optimizer_idx': it is an argument of training_step"):
        Trainer().validate(evaluated(), probe_batches(1))


def test_forward_is_given_the_batch_alone():
    class Masked(Probe):
        def forward(self, x, mask=None, k=3):
            assert (mask, k) == (None, 3)
            return x * self.w

    assert len(Trainer(plugins=["-*"]).predict(Masked(), probe_batches(2))) == 2


def test_none_is_as_good_as_absent():
    class Has:
        present = staticmethod(len)
        absent = None
        wrong = 3

    assert defined(Has(), "present") is len
    assert defined(Has(), "absent") is defined(Has(), "nothing") is None
    with pytest.raises(TypeError, match=r"Has\.wrong must be a function; it is int"):
        defined(Has(), "wrong")


def test_a_stash_keeps_values_by_key_not_by_name():
    one: Key[int] = Key("same")
    other: Key[str] = Key("same")
    stash = Stash()
    stash[one] = 3
    assert one in stash
    assert other not in stash
    assert (stash[one], stash.get(one), stash.get(other), stash.get(other, "x"), len(stash)) == (3, 3, None, "x", 1)
    stash[one] = 4
    stash[other] = "text"
    assert (stash[one], stash[other], len(stash), repr(one)) == (4, "text", 2, "Key('same')")
    del stash[one]
    assert one not in stash
    with pytest.raises(KeyError):
        stash[one]
