"""The loop that runs is the one that is written, less the calls that change nothing."""

from __future__ import annotations

import dis
import inspect
import itertools
import traceback

import pytest
import torch

import lightloop.loop
from lightloop import Loop, Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches

TELLING = (
    "before_batch",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_step",
    "after_step",
    "after_batch",
)


def calls_of(function):
    """The hooks that a function calls, as its compiled code has them."""
    steps = itertools.pairwise(dis.get_instructions(function))
    attributes = [(one.argval, other.argval) for one, other in steps if other.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    return [name for owner, name in attributes if owner == "hook" or (isinstance(owner, tuple) and owner[-1] == "hook")]


def calls_in(loop):
    methods = (
        "train_epoch",
        "train_batch",
        "run_forward",
        "run_backward",
        "close_window",
        "prepare_step",
        "conclude_step",
    )
    return {name: calls_of(getattr(type(loop), name)) for name in methods}


def fit(plugins=(), batches=3, **options):
    trainer = Trainer(["-*", *plugins], **options)
    torch.manual_seed(0)
    module = TinyClassifier()
    trainer.fit(module, classification_batches(batches))
    return trainer.loop, module


def test_what_nobody_hears_is_not_called():
    loop, _ = fit()
    assert isinstance(loop, Loop)
    assert calls_in(loop) == {
        "train_epoch": [],
        "train_batch": [],
        "run_forward": ["forward"],
        "run_backward": ["backward"],
        "close_window": ["step", "zero_grad"],
        "prepare_step": [],
        "conclude_step": [],
    }


@pytest.mark.parametrize("hook", TELLING)
def test_what_somebody_hears_is_called(hook):
    heard = []
    listener = type("Listener", (Plugin,), {"name": "listener", hook: hookimpl(lambda self: heard.append(1))})
    setattr(listener, hook, hookimpl(lambda self: heard.append(hook)))
    loop, _ = fit([listener()])
    assert heard == [hook] * 3
    assert [name for names in calls_in(loop).values() for name in names].count(hook) == 1


def test_an_answer_of_a_plugin_is_asked_for():
    class Holds(Plugin):
        name = "holds"

        @hookimpl
        def hold_step(self, loop):
            return loop.batch_idx == 0

    loop, _ = fit([Holds()])
    assert (loop.global_step, calls_in(loop)["train_batch"]) == (2, ["hold_step"])


def test_a_wrapper_counts_as_somebody():
    seen = []

    class Around(Plugin):
        name = "around"

        @hookimpl(wrapper=True)
        def split_batch(self):
            pieces = yield
            seen.append(len(pieces))
            return pieces

        @hookimpl(wrapper=True)
        def before_batch(self):
            seen.append("in")
            yield

    loop, _ = fit([Around()], batches=1)
    assert (seen, calls_in(loop)["train_batch"]) == (["in", 1], ["before_batch", "split_batch"])


def test_who_bows_out_before_the_first_batch_is_nobody_and_later_is_called_no_more():
    heard = []

    class Leaves(Plugin):
        name = "leaves"

        @hookimpl
        def before_fit(self, loop):
            loop.leave_out(self, "before_batch")

        @hookimpl
        def before_batch(self):
            heard.append("before_batch")

        @hookimpl
        def after_batch(self, loop):
            heard.append(loop.batch_idx)
            if loop.batch_idx == 1:
                loop.leave_out(self)

    loop, _ = fit([Leaves()], batches=4)
    assert heard == [0, 1]
    assert calls_in(loop)["train_batch"] == ["after_batch"]


def test_who_watches_from_within_a_run_sees_all_from_the_next_epoch_on():
    seen = []

    class Watches(Plugin):
        name = "watches"

        @hookimpl
        def after_epoch(self, loop):
            def watch(hook, plugin, function):
                return lambda *given: (seen.append((hook, loop.epoch)), function(*given))[1]

            if loop.epoch == 0:
                loop.hook.rebuild(watch=watch)

    fit([Watches()], batches=1, max_epochs=2)
    assert ("move_batch", 1) in seen
    assert ("hold_step", 1) in seen


def test_errors_point_to_the_lines_that_are_written():
    class Fails(TinyClassifier):
        def training_step(self, batch, batch_idx):
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        Trainer(["-*"]).fit(Fails(), classification_batches(1))
    frames = [frame for frame in traceback.extract_tb(caught.tb) if frame.filename == lightloop.loop.__file__]
    assert [frame.name for frame in frames] == ["fit", "train_epoch", "train_batch", "run_forward", "forward"]
    assert [frame.line for frame in frames[1:4]] == [
        "self.train_batch()",
        "self.run_forward()",
        "self.output = output = self.hook.forward(loop=self)",
    ]


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, {"max_steps": 2}])
def test_nothing_changes(options, monkeypatch):
    class Records(Plugin):
        name = "records"

        def check(self):
            self.losses = []

        @hookimpl
        def after_batch(self, loop):
            self.losses.append((loop.batch_idx, loop.global_step, loop.loss.item()))

    records = Records()
    _, tailored = fit([records], batches=5, **options)
    monkeypatch.setattr(lightloop.loop, "tailored", lambda kind, relay: kind)
    plain = Records()
    loop, written = fit([plain], batches=5, **options)
    assert type(loop) is Loop
    assert records.losses == plain.losses
    for one, other in zip(tailored.parameters(), written.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def forgetful():
    """What is known of sources is forgotten, before and after."""
    known = (lightloop.tailor._classes, lightloop.tailor._written, lightloop.tailor._tailored)
    for each in known:
        each.cache_clear()
    yield
    for each in known:
        each.cache_clear()


@pytest.mark.parametrize("source", [OSError("there is none"), "class Loop:\n    def fit(self):", "class Other: ..."])
def test_without_its_own_source_the_loop_runs_as_it_is(source, forgetful, monkeypatch):
    def getsource(module):
        if isinstance(source, OSError):
            raise source
        return source

    monkeypatch.setattr("inspect.getsource", getsource)
    loop, _ = fit()
    assert (type(loop), loop.global_step) == (Loop, 3)


def test_a_source_that_is_newer_than_what_runs_is_not_taken(forgetful, monkeypatch):
    newer = inspect.getsource(lightloop.loop).replace("self.batch_idx += 1", "self.batch_idx += 2")
    monkeypatch.setattr("inspect.getsource", lambda module: newer)
    loop, _ = fit()
    assert (type(loop), loop.total_batches, loop.global_step) == (Loop, 3, 3)


def test_a_method_that_somebody_replaces_is_the_one_that_runs(monkeypatch):
    ran = []
    train_batch = Loop.train_batch

    def patched(self):
        ran.append(self.batch_idx)
        train_batch(self)

    monkeypatch.setattr(Loop, "train_batch", patched)
    fit()
    assert ran == [0, 1, 2]
