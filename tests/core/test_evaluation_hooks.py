"""The hooks of a pass over evaluation data are given the pass; those that take only the loop are called as ever."""

from __future__ import annotations

import pytest

from lightloop import Evaluation, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches

HOOKS = (
    "before_evaluation",
    "before_evaluation_batch",
    "evaluate_batch",
    "after_evaluation_batch",
    "after_evaluation_batches",
    "after_evaluation",
)


NAMES = ("both", "alone", "old", "none")


class Validated(Probe):
    fails = False

    def validation_step(self, batch):
        if self.fails:
            raise ValueError("in the step")
        self.log("x", batch)

    def test_step(self, batch):
        self.log("x", batch)

    def predict_step(self, batch):
        return batch


def watching(name, *arguments, wrapper=False):
    """A plugin that writes down what its hooks of evaluation are given."""
    told: list[tuple[str, object, object]] = []

    def implemented(hook):
        def body(self, **given):
            loop, evaluation = given.get("loop"), given.get("evaluation")
            told.append((hook, None if loop is None else loop.evaluation, evaluation))

        space = {"body": body}
        yields = "return (yield)" if wrapper else "return None"
        exec(
            f"def {hook}(self, {', '.join(arguments)}):\n"
            f"    body(self, {', '.join(f'{each}={each}' for each in arguments)})\n    {yields}",
            space,
        )
        return hookimpl(space[hook], wrapper=wrapper)

    hooks = [hook for hook in HOOKS if not (wrapper and hook == "after_evaluation")]
    plugin = type(
        name,
        (Plugin,),
        {"name": name, "before": NAMES[NAMES.index(name) + 1 :], **{hook: implemented(hook) for hook in hooks}},
    )()
    return plugin, told


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
@pytest.mark.parametrize("wrapper", [False, True])
def test_each_hook_is_given_the_pass(stage, wrapper):
    both, of_both = watching("both", "loop", "evaluation", wrapper=wrapper)
    alone, of_alone = watching("alone", "evaluation", wrapper=wrapper)
    old, of_old = watching("old", "loop", wrapper=wrapper)
    none, of_none = watching("none", wrapper=wrapper)
    getattr(Trainer(["-*", both, alone, old, none]), stage)(Validated(), probe_batches(1))
    hooks = [hook for hook in HOOKS if not (wrapper and hook == "after_evaluation")]
    (evaluation,) = {given for _, _, given in of_both}
    assert isinstance(evaluation, Evaluation)
    assert (evaluation.stage, evaluation.batch_idx) == (stage, 0)
    assert of_both == [(hook, evaluation, evaluation) for hook in hooks]
    assert of_alone == [(hook, None, evaluation) for hook in hooks]
    assert of_old == [(hook, evaluation, None) for hook in hooks]
    assert of_none == [(hook, None, None) for hook in hooks]


def test_a_pass_inside_a_fit_is_another_each_time_and_one_that_failed_is_given_too():
    plugin, told = watching("both", "loop", "evaluation")
    module = Validated()
    user = Trainer(["-*", "validation", plugin], max_epochs=2, num_sanity_val_steps=1)
    user.fit(module, probe_batches(1), probe_batches(1))
    passes = list(dict.fromkeys(evaluation for _, _, evaluation in told))
    assert [evaluation.sanity for evaluation in passes] == [True, False, False]
    assert [evaluation.metrics for evaluation in passes] == [{"x": 1.0}] * 3
    told.clear()
    module.fails = True
    with pytest.raises(ValueError, match="in the step"):
        user.validate(module, probe_batches(1))
    assert [hook for hook, _, _ in told] == [*HOOKS[:3], "after_evaluation"]
    assert told[-1][2].metrics == {}
