"""Every hook is documented in the same labelled lines, called by the loop, and seen by some run here."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from lightloop import Hooks, Plugin, Trainer, hookimpl
from lightloop.host.dispatch import CLEAN_UP
from lightloop.operations import Operations
from lightloop.testing import Probe, Recorder, TinyClassifier, classification_batches, probe_batches

SPECS = {name: spec for name, spec in vars(Hooks).items() if hasattr(spec, "lightloop_spec")}
LABELS = ("When", "May change", "Default", "Order")


def labels(spec):
    return re.findall(r"^([A-Z]\w*(?: \w+)?): ", inspect.getdoc(spec), flags=re.MULTILINE)


@pytest.mark.parametrize("name", SPECS)
def test_a_hook_says_what_it_is_when_it_is_called_and_what_may_be_changed(name):
    spec = SPECS[name]
    first, _, rest = inspect.getdoc(spec).partition("\n")
    assert first.endswith("."), "the first line is one sentence"
    assert not rest or rest.startswith("\n")
    found = labels(spec)
    assert found == [label for label in LABELS if label in found], "labelled lines, in one order"
    assert "When" in found
    operation = spec.lightloop_spec["firstresult"]
    assert ("Default" in found) is operation
    assert ("May change" in found) is not operation


@pytest.mark.parametrize("name", SPECS)
def test_names_and_arguments_follow_the_rules(name):
    spec = SPECS[name]
    arguments = list(inspect.signature(spec).parameters)
    assert arguments[:2] == ["self", "loop"]
    assert (inspect.signature(spec).return_annotation != "None") is spec.lightloop_spec["firstresult"]
    tells = re.match(r"(before|after|between|on)_|setup$|teardown$|log_metrics$|(reduce|unscale)_gradients$", name)
    assert (tells is None) is spec.lightloop_spec["firstresult"]


def test_the_loop_answers_every_operation_itself():
    answered = {name for name, method in vars(Operations).items() if hasattr(method, "lightloop_impl")}
    assert answered == {name for name, spec in SPECS.items() if spec.lightloop_spec["firstresult"]}
    assert set(CLEAN_UP) <= set(SPECS)


class Asking(Plugin):
    """Asks for what is answered only when somebody asks."""

    name = "asking"

    @hookimpl
    def before_fit(self, loop):
        assert loop.total_steps == 3

    @hookimpl
    def before_step(self, loop):
        if loop.batch_idx == 1:
            loop.skip_step("no")
        loop.grad_norm()

    @hookimpl
    def after_batch(self, loop):
        if loop.batch_idx == 1:
            loop.interrupt("enough")

    @hookimpl
    def on_interrupt(self, loop):
        loop.write({"x": 1.0})


def test_every_hook_is_called_by_some_run():
    recorder = Recorder()
    Trainer(["-*", recorder, Asking()]).fit(Probe(), probe_batches(3))
    Trainer(["-*", recorder], accumulate_grad_batches=2).fit(Probe(), probe_batches(3))
    Trainer(["-*", recorder]).validate(TinyClassifier(), classification_batches(1))
    stop = type("Stop", (Plugin,), {"name": "stop", "after_batch": hookimpl(lambda self, loop: loop.stop("x"))})
    Trainer(["-*", recorder, stop]).fit(Probe(), probe_batches(3))
    with pytest.raises(TypeError, match="must return a tensor"):
        Trainer(["-*", recorder]).fit(
            type("Bad", (Probe,), {"training_step": lambda self, batch: 3})(), [torch.ones(())]
        )
    assert set(recorder.events) == set(SPECS)
