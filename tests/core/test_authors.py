"""Nothing that an author of a plugin gets wrong is silent, in a plugin that is listed and in one that is installed."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch

from lightloop import Hooks, Plugin, PluginError, Trainer, hookimpl
from lightloop.host.compiled import in_turn
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from tests.core.mistakes import ANSWERS, DECLARED, DOUBTED, EDITS, FREE, REFUSED, WRONG, Mistake, method
from tests.core.test_manager import of_hooks

WHO = "plugin 'mistaken' (mistaken_module)"


def made(mistake: Mistake, default: bool = False) -> Any:
    """The class of a mistake, of a module of its own."""
    module = ModuleType("mistaken_module")
    exec(compile(mistake.source(default), "mistaken_module.py", "exec"), vars(module))
    return module.Mistaken


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_never_work_is_refused_when_the_trainer_is_made(name):
    mistake = REFUSED[name]
    with pytest.raises(PluginError, match=f"^{mistake.pattern(WHO)}"):
        Trainer(["-*", made(mistake)])


@pytest.mark.parametrize("name", DECLARED)
def test_what_a_class_cannot_mean_is_refused_when_it_is_made(name):
    with pytest.raises(TypeError, match=DECLARED[name].pattern(WHO)):
        made(DECLARED[name])


@pytest.mark.parametrize("name", DOUBTED)
def test_what_is_most_likely_a_mistake_is_warned_of_once_for_each_trainer(name):
    mistake = DOUBTED[name]
    kind = made(mistake)
    with pytest.warns(UserWarning, match=f"^{mistake.pattern(WHO)}") as warned:
        trainer = Trainer(["-*", kind])
    trainer.fit(Probe(), probe_batches(1))  # which warns no second time
    assert [warning.filename for warning in warned] == [__file__]


class Asks(TinyClassifier):
    """Asks for what some operations answer."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        assert self._loop is not None
        _ = self._loop.total_steps
        return loss


def asking(but: str) -> Any:
    """A plugin by which every operation is asked for; it has no hook ``but``."""

    def hold_step(self: Any, loop: Any) -> Any:
        return loop.batch_idx % 2 == 0

    def before_step(self: Any, loop: Any) -> None:
        loop.grad_norm()
        if loop.batch_idx == 3:
            loop.stop("so that may_stop is asked")

    hooks = {"before_step": hookimpl(before_step), "hold_step": hookimpl(hold_step)}
    hooks.pop(but, None)
    return type("Asking", (Plugin,), {"name": "asking", **hooks, "__module__": __name__})


def test_every_operation_has_wrong_answers():
    operations = {name for name, spec in vars(Hooks).items() if getattr(spec, "lightloop_spec", {}).get("firstresult")}
    assert operations == {*WRONG, *FREE}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_names_the_plugin_and_what_is_wanted(name):
    hook, mistake = ANSWERS[name]
    with pytest.raises((TypeError, ValueError, IndexError)) as info:
        Trainer(["-*", made(mistake), asking(but=hook)]).fit(Asks(), classification_batches(4))
    assert str(info.value).startswith(f"{WHO} answered {hook!r} with ")
    assert mistake.said in str(info.value)
    assert "training_step" not in str(info.value)
    assert info.value.__notes__.count(f"in {hook} of {WHO}") == 1


@pytest.mark.parametrize("name", [name for name, (hook, _) in ANSWERS.items() if hook == "forward"])
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_beside_others_that_pass_it_on_the_one_that_answered_is_named(name, precision):
    _, mistake = ANSWERS[name]
    with pytest.raises((TypeError, ValueError)) as info:
        Trainer(["-*", "toggle", made(mistake)], precision=precision).fit(TinyClassifier(), classification_batches(2))
    assert str(info.value).startswith(f"{WHO} answered 'forward' with what cannot be used: ")


def test_what_training_step_returned_is_still_its_own_where_plugins_pass_it_on():
    class wrong(TinyClassifier):
        def training_step(self, batch, batch_idx):
            return "x"

    passes = of_hooks("passes", forward=hookimpl(lambda self, loop: None))
    with pytest.raises(TypeError, match=r"^training_step must return a tensor"):
        Trainer(["-*", "toggle", passes], precision="bf16-mixed").fit(wrong(), classification_batches(2))


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(
    "options", [{}, {"precision": "16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.1}]
)
def test_a_gradient_that_is_edited_in_another_place_than_the_optimizers_is_refused(name, options):
    looks = of_hooks("looks", before_step=hookimpl(lambda self, loop: None))
    with pytest.raises(RuntimeError, match=f"^{EDITS[name].pattern(WHO)}"):
        Trainer(["-*", looks, made(EDITS[name])], **options).fit(TinyClassifier(), classification_batches(2))


def test_a_gradient_that_is_another_tensor_is_seen_by_those_after_it_where_it_is_looked_up_again():
    def doubles(self, loop):
        loop.module.w.grad = 2 * loop.module.w.grad
        loop.gradients = loop.find_gradients()

    module = Probe()
    Trainer(["-*", of_hooks("a", before_step=hookimpl(doubles))], gradient_clip_val=1.0).fit(module, probe_batches(2))
    assert module.w.item() == pytest.approx(-2.0)


@pytest.mark.parametrize("hook", ["after_forward", "before_backward"])
@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("loop.loss.item()", "float that needs no gradient"),
        ("loop.loss.detach()", "a tensor of shape () that needs no gradient"),
        ("loop.loss.repeat(3)", "a tensor of shape (3,)"),
    ],
)
def test_a_loss_that_a_plugin_has_spoilt_is_its_own(hook, value, found):
    spoils = made(Mistake(method(hook, f"loop.loss = {value}"), ""))
    innocent = of_hooks("innocent", before_backward=hookimpl(lambda self, loop: None))
    with pytest.raises((AttributeError, RuntimeError)) as info:
        Trainer(["-*", innocent, spoils]).fit(TinyClassifier(), classification_batches(1))
    note = f"loop.loss is {found}, and {hook} of {WHO} sets it: set it to one number that needs a gradient"
    assert [each for each in info.value.__notes__ if each.startswith("loop.loss")] == [note]


def test_a_batch_that_a_plugin_takes_away_is_passed_over_as_one_that_is_none():
    def before_batch(self, loop):
        if loop.batch_idx == 1:
            loop.batch = None

    module = Probe()
    takes = of_hooks("takes", before_batch=hookimpl(before_batch))
    result = Trainer(["-*", takes], accumulate_grad_batches=3).fit(module, probe_batches(3))
    assert (result.global_step, module.seen, module.w.item()) == (1, [1.0, 3.0], -2.0)


@pytest.mark.parametrize("where", ["__init__", "__post_init__", "validate", "reset"])
def test_an_error_in_making_a_plugin_names_it(where):
    def fails(self):
        raise KeyError("mine")

    kind = type("Fails", (Plugin,), {"name": "unlucky", "__module__": "mistaken_module", where: fails})
    with pytest.raises(KeyError) as info:
        Trainer(["-*", kind])
    assert info.value.__notes__ == ["in making plugin 'unlucky' (mistaken_module)"]


def test_what_is_given_lazily_is_read_as_late_and_as_often_as_by_the_loop_itself():
    events = []

    def read_batches(self, loop):
        for batch in probe_batches(3):
            events.append(f"read {batch:g}")
            yield batch, bool(batch == 3)
        events.append("end")

    steps = hookimpl(lambda self, loop: events.append(f"step {loop.batch:g}"))
    Trainer(["-*", of_hooks("reads", read_batches=hookimpl(read_batches), after_step=steps)]).fit(Probe(), [1])
    assert events == ["read 1", "step 1", "read 2", "step 2", "read 3", "step 3", "end"]


def test_a_wrapper_that_loses_the_batch_is_named():
    def move_batch(self, loop, batch):
        answer = yield
        if loop.batch_idx != 1:
            return answer

    with pytest.raises(TypeError, match=r"'loses' \(.*\) wraps 'move_batch' and returned None in place of the answer"):
        Trainer(["-*", of_hooks("loses", move_batch=hookimpl(move_batch, wrapper=True))]).fit(Probe(), probe_batches(3))
    losing = of_hooks("loses", move_batch=hookimpl(move_batch, wrapper=True))
    result = Trainer(["-*", losing]).fit(Probe(), [torch.tensor(1.0), None, torch.tensor(2.0)])
    assert result.global_step == 2  # None was given, and nothing is lost


def test_an_answer_is_held_to_it_in_every_batch_and_right_ones_take_no_call():
    holds = of_hooks("holds", hold_step=hookimpl(lambda self, loop: "yes" if loop.batch_idx == 2 else None))
    with pytest.raises(TypeError, match="answered 'hold_step' with 'yes'") as info:
        Trainer(["-*", holds]).fit(Probe(), probe_batches(4))
    assert "at epoch 0, batch 2" in info.value.__notes__


def test_a_wrapper_that_loses_the_answer_on_one_way_is_named():
    def step(self, loop):
        applied = yield
        if loop.batch_idx == 0:
            return applied

    with pytest.raises(TypeError, match=r"'bad' \(.*\) wraps 'step' and returned None in place of the answer: end it"):
        Trainer(["-*", of_hooks(step=hookimpl(step, wrapper=True))]).fit(Probe(), probe_batches(2))


def test_the_failure_of_one_that_may_be_taken_out_is_a_wrong_answer_too():
    holds = of_hooks("holds", hold_step=hookimpl(lambda self, loop: 1), on_failure="disable")
    with pytest.warns(
        UserWarning, match="'holds' .* is out for the rest of the run; it failed in hold_step: TypeError"
    ):
        result = Trainer(["-*", holds]).fit(Probe(), probe_batches(2))
    assert result.global_step == 2
    assert list(result.disabled) == ["holds"]


def test_none_is_an_answer_where_anything_is():
    def forward(self, loop):
        output = yield
        return output if loop.batch_idx else None

    result = Trainer(["-*", of_hooks(forward=hookimpl(forward, wrapper=True))]).fit(Probe(), probe_batches(3))
    assert result.global_step == 2


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Lets no attribute be set, so that Python can add no note to it."""

    code: int


class Raises(Probe):
    def training_step(self, batch):
        raise self.error


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_an_exception_that_takes_no_notes_is_cleaned_up_after_like_any_other(stage):
    seen = []
    told = {
        "after_fit": hookimpl(lambda self: seen.append("after_fit")),
        "teardown": hookimpl(lambda self: seen.append("teardown")),
    }

    def on_error(self, loop, error):
        seen.append(error)
        raise ValueError("and then this")

    module = Raises()
    module.validation_step = module.training_step
    module.error = FrozenError(3)
    with pytest.raises(FrozenError) as info:
        getattr(Trainer(["-*", of_hooks("told", on_error=hookimpl(on_error), **told)]), stage)(module, probe_batches(1))
    assert info.value is module.error
    assert seen == [module.error, *(["after_fit"] if stage == "fit" else []), "teardown"]
    assert any(note.startswith("at epoch 0, ") for note in info.value.__notes__)
    assert any(
        note.startswith("then also ValueError: and then this (in on_error of plugin 'told'")
        for note in info.value.__notes__
    )


def test_a_traceback_shows_the_line_of_a_compiled_hook():
    def fails(self):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as info:
        Trainer(["-*", of_hooks("my-own", hold_step=hookimpl(fails))]).fit(Probe(), probe_batches(1))
    text = "".join(traceback.format_exception(info.value))
    assert "in hold_step\n    if (answer := p0_my_own()) is not None" in text


def test_the_same_source_is_shown_under_the_same_name_and_another_under_another():
    class Impl:
        argnames = ("x",)

        def __init__(self, name):
            self.plugin_name = name

    def file(*names):
        impls = [Impl(name) for name in names]
        return in_turn("hook_of_a_test", ["x"], impls, [print] * len(impls), "none").__code__.co_filename

    assert file("a") == file("a") == "<hook hook_of_a_test>"
    assert file("a", "b") == "<hook hook_of_a_test 2>"
    assert file("7") == "<hook hook_of_a_test 3>"


def test_answers_of_what_comes_with_lightloop_are_right(tmp_path, capsys):
    trainer = Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        track_grad_norm=2,
        precision="bf16-mixed",
        nonfinite="skip_step",
        default_root_dir=tmp_path,
        limit_train_batches=3,
        overfit_batches=0,
    )
    result = trainer.fit(TinyClassifier(), classification_batches(4), classification_batches(1))
    assert result.status == "finished"
    assert "lightloop_plugins" in sys.modules


def test_an_array_may_be_the_data_that_a_plugin_prepares():
    module = Probe()
    plugin = of_hooks("prepares", prepare_loader=hookimpl(lambda self, loop, loader: loader))
    Trainer(["-*", plugin]).fit(module, numpy.arange(1.0, 5.0))
    assert module.w.item() == -10
