"""The rest of the kit: fixtures that pytest finds by itself, and the assertion about order."""

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, assert_order, probe_batches


class First(Plugin):
    name = "first"
    before = ("second",)


class Second(Plugin):
    name = "second"


class Third(Plugin):
    name = "third"
    after = ("second",)


def test_an_order_holds_however_plugins_are_listed():
    assert_order([Second, First, Third], "first", "second", "third")
    with pytest.raises(AssertionError, match="listed as"):
        assert_order([First, Third], "third", "first")


def test_an_order_that_names_alone_decide_is_no_accident():
    class Aardvark(Plugin):
        name = "aardvark"

    assert_order([Third, Aardvark, First], "aardvark", "first", "third", orders=3)


def test_the_fixtures_are_there(recorder, tiny_classifier, classification_data, probe, probe_data):
    Trainer(["-*", recorder]).fit(probe, probe_data[:1])
    assert probe.w.item() == -1.0
    assert recorder.events[:3] == ["setup", "prepare_loader", "configure_optimizers"]
    assert recorder.events[-1] == "teardown"
    assert Trainer(["-*"]).fit(tiny_classifier, classification_data).global_step == 6


def test_the_classifier_is_the_same_each_time_and_draws_nothing(request):
    before = torch.get_rng_state()
    one = request.getfixturevalue("tiny_classifier")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(0)
    again = type(one)()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))


def test_a_wrapper_that_answers_in_place_of_an_error_is_not_disabled():
    class Calms(Plugin):
        name = "calms"
        on_failure = "disable"

        @hookimpl(wrapper=True)
        def forward(self, loop):
            try:
                return (yield)
            except RuntimeError:
                return None

    class Net(Probe):
        def training_step(self, batch):
            raise RuntimeError("no")

    trainer = Trainer(["-*", Calms])
    with pytest.warns(UserWarning, match="nothing was trained in epoch 0"):
        assert trainer.fit(Net(), probe_batches(1)).disabled == {}
