"""The contract of gradients holds a precision of somebody else's to what it promises, and finds one that keeps it not."""

from contextlib import nullcontext

import pytest

from lightloop import Plugin, hookimpl
from lightloop.testing.ranks import Outcome
from lightloop.testing.step_gradients import Case, GradientContract, compare_case

EIGHT = 8.0


class Scaled(Plugin):
    """A precision that multiplies the loss by 8, and takes that out of the gradient where it should."""

    name = "scaled"
    group = "precision"

    @hookimpl(wrapper=True)
    def backward(self, loop):
        loss, loop.loss = loop.loss, loop.loss * EIGHT
        try:
            return (yield)
        finally:
            loop.loss = loss

    @hookimpl
    def unscale_gradients(self, loop):
        for parameter in (each for group in loop.optimizer.param_groups for each in group["params"]):
            parameter.grad = parameter.grad / EIGHT  # another tensor, which plugins then must see


class Late(Scaled):
    """The same, but for the phase."""

    name = "late"

    @hookimpl
    def unscale_gradients(self, loop):
        pass

    @hookimpl
    def before_step(self, loop):
        for gradient in loop.gradients:
            gradient /= EIGHT


class Mine(GradientContract):
    options = {"strategy": False, "plugins": [Scaled]}
    precisions = (None,)
    tolerance = 0.0

    @classmethod
    def around(cls, precision, device):
        assert precision is None
        return nullcontext()

    def launch(self, function, *arguments):
        return [Outcome(value=function(*arguments), status=0)]


class TestScaled(Mine):
    pass


class TooLate(Mine):
    options = {"strategy": False, "plugins": [Late]}


def test_a_precision_that_unscales_in_before_step_is_found():
    case = Case(None, 1, 1, weighted=False, cut=False)
    with pytest.raises(AssertionError, match=r"Case\(precision=None, optimizers=1.*\): a_look at step 0: "):
        compare_case(TooLate, case)


def test_a_sample_lets_every_two_values_meet():
    class Some(GradientContract):
        sample = 5

    def pairs(cases):
        values = [tuple(vars(case).items()) for case in cases]
        return {(one, other) for each in values for one in each for other in each}

    assert len(Some.cases()) == 10
    assert pairs(Some.cases()) == pairs(GradientContract.cases())
