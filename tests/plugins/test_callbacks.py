import functools
import pickle

import pytest
import torch

from lightloop import Callback, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches

ONLY = {"plugins": ["-*", "callbacks", "validation", "log_every"]}


def trainer(*callbacks, **options):
    return Trainer(callbacks=list(callbacks), **ONLY, **options)


def listening(base, prefix, out, events):
    """A subclass of ``base`` whose methods of those names write themselves to ``out``."""

    def method(event):
        return lambda self, *arguments: out.append(f"{prefix}{event}")

    return type("Listening", (base,), {event: method(event) for event in events})


EVENTS = [name for name in vars(Callback) if name.startswith("on_") and "checkpoint" not in name] + [
    "setup",
    "teardown",
]
EPOCH = [
    "on_epoch_start",
    "on_train_epoch_start",
    *[
        "on_batch_start",
        "on_train_batch_start",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "on_before_zero_grad",
        "on_train_batch_end",
        "on_batch_end",
    ]
    * 2,
    "on_train_epoch_end",
    "on_epoch_end",
]


def a_pass(word, batches=1):
    one = [f"on_{word}_batch_start", f"on_{word}_batch_end"]
    return [
        f"on_{word}_start",
        f"on_{word}_epoch_start",
        *one * batches,
        f"on_{word}_epoch_end",
        f"on_{word}_end",
    ]


def test_the_events_of_a_fit_in_their_order():
    out = []
    callback = listening(Callback, "", out, EVENTS)()
    trainer(callback, num_sanity_val_steps=1).fit(
        TinyClassifier(), classification_batches(2), classification_batches(2)
    )
    assert [event for event in out if "validation" not in event] == [
        "setup",
        "on_fit_start",
        "on_sanity_check_start",
        "on_sanity_check_end",
        "on_train_start",
        *EPOCH,
        "on_train_end",
        "on_fit_end",
        "teardown",
    ]
    sanity = out[out.index("on_sanity_check_start") + 1 : out.index("on_sanity_check_end")]
    assert sanity == a_pass("validation")
    after = out[out.index("on_sanity_check_end") + 1 :]
    assert [event for event in after if "validation" in event] == a_pass("validation", 2)


@pytest.mark.parametrize(("stage", "word"), [("validate", "validation"), ("test", "test"), ("predict", "predict")])
def test_the_events_of_an_evaluation_by_itself(stage, word):
    class Evaluated(TinyClassifier):
        test_step = TinyClassifier.validation_step

        def predict_step(self, batch):
            return self(batch[0])

    out = []
    getattr(trainer(listening(Callback, "", out, EVENTS)()), stage)(Evaluated(), classification_batches(2))
    assert out == ["setup", *a_pass(word, 2), "teardown"]


def test_callbacks_hear_before_the_module_in_the_order_of_the_list():
    out = []
    events = [event for event in EVENTS if "validation" not in event]
    first, second = (listening(Callback, f"{name}.", out, events)() for name in ("first", "second"))
    module = listening(TinyClassifier, "module.", out, events)()
    trainer(first, second).fit(module, classification_batches(2))
    told = [event.partition(".")[2] for event in out if event.startswith("module.")]
    in_order = []
    for event in told:
        if event in ("setup", "on_fit_start", "on_train_start", "on_train_end", "on_fit_end", "teardown"):
            in_order += [f"first.{event}", f"second.{event}", f"module.{event}"]
    assert [event for event in out if event in set(in_order)] == in_order
    for event in told:
        assert out.index(f"first.{event}") < out.index(f"second.{event}") < out.index(f"module.{event}")
    assert len(out) == 3 * len(told)


def test_arguments_are_those_of_the_familiar_form():
    seen = {}

    class Looks(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen["start"] = trainer is user and pl_module is module and batch is data[batch_idx]

        def on_before_backward(self, trainer, pl_module, loss):
            seen["loss"] = loss.requires_grad

        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            seen["optimizer"] = optimizer is trainer.optimizers[0]

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen["outputs"] = list(outputs), outputs["loss"].requires_grad

        def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=7):
            seen["validation"] = batch_idx, dataloader_idx

        def setup(self, trainer, pl_module, stage):
            seen["stage"] = stage

    data, module = classification_batches(2), TinyClassifier()
    user = trainer(Looks())
    user.fit(module, data, [iter(classification_batches(1)), iter(classification_batches(3))], num_sanity_val_steps=0)
    assert seen == {
        "start": True,
        "loss": True,
        "optimizer": True,
        "outputs": (["loss"], False),
        "validation": (2, 1),
        "stage": "fit",
    }


def test_old_and_short_signatures_work():
    seen = []

    class Old:
        def on_train_batch_start(self, trainer, pl_module, batch, batch_nb, dataloader_idx):
            seen.append((batch_nb, dataloader_idx))

        def on_batch_end(self, *everything):
            seen.append(len(everything))

        def on_train_batch_end(self, t, m):
            seen.append((type(t), type(m)))

        on_epoch_end = functools.partial(seen.append, "partial")

        def __init__(self):
            self.on_epoch_start = lambda trainer, module: seen.append("lambda")
            self.on_epoch_end = functools.partial(seen.append, "partial") and (lambda *_: seen.append("stars"))
            self.on_train_end = functools.partial(self.note, "partial")

        def note(self, what, trainer, module):
            seen.append(what)

    Trainer(callbacks=Old(), **ONLY).fit(Probe(), probe_batches(1))
    assert seen == ["lambda", (0, 0), (Trainer, Probe), 2, "stars", "partial"]


def test_what_a_method_cannot_have_is_an_error_that_names_it():
    class Greedy(Callback):
        def on_train_start(self, trainer, module, one, two):
            pass

    with pytest.raises(
        TypeError, match=r"on_train_start\(trainer, module, one, two\) cannot be called: there is no argument for 'one'"
    ):
        trainer(Greedy()).fit(Probe(), probe_batches(1))


def test_only_events_that_somebody_hears_are_called():
    class Hears(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            pass

    def present(callbacks):
        hooks = {}

        class Look(Plugin):
            name = "look"

            @hookimpl
            def after_batch(self, loop):
                for hook in (
                    "before_batch",
                    "before_backward",
                    "after_backward",
                    "before_step",
                    "zero_grad",
                    "after_batch",
                ):
                    plugin = loop.trainer.plugin("callbacks")
                    hooks[hook] = not loop.hook._has_left(plugin, hook)

        Trainer(callbacks=callbacks, plugins=[Look(), *ONLY["plugins"]]).fit(Probe(), probe_batches(1))
        return [hook for hook, there in hooks.items() if there]

    assert present([Hears()]) == ["after_batch"]
    assert present([Callback()]) == []
    assert present(()) == []


def test_none_is_absent_and_so_is_what_the_base_class_does():
    class Silent(Callback):
        on_train_start = None

        def on_fit_start(self, trainer, module):
            super().on_fit_start(trainer, module)

    class SilentModule(Probe):
        on_train_batch_start = None

    assert trainer(Silent()).fit(SilentModule(), probe_batches(2)).global_step == 2


@pytest.mark.parametrize("whose", ["callback", "module"])
def test_minus_one_passes_the_batch_over_and_ends_the_epoch(whose):
    class Ends(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            return -1 if batch_idx == 1 else None

    class EndingProbe(Probe):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 1 else None

    module = EndingProbe() if whose == "module" else Probe()
    callbacks = [Ends()] if whose == "callback" else []
    result = trainer(*callbacks, max_epochs=2).fit(module, probe_batches(4))
    assert (module.seen, result.epoch, result.global_step) == ([1.0, 1.0], 2, 2)


def test_gradients_may_be_replaced_before_the_step():
    class Fixed(Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            module.w.grad = torch.tensor(0.5)

    module = Probe()
    trainer(Fixed(), gradient_clip_val=0.25).fit(module, probe_batches(2))
    assert module.w.item() == pytest.approx(-0.5, abs=1e-5)  # two steps of the new gradient, clipped to 0.25


def test_what_is_logged_at_the_end_of_a_pass_is_among_its_metrics():
    class Sums(TinyClassifier):
        def on_validation_epoch_end(self):
            self.log("answer", 42.0)

        def on_train_epoch_end(self):
            self.log("twice", 84.0, on_epoch=True)

    user = trainer()
    result = user.fit(Sums(), classification_batches(2), classification_batches(2))
    assert (result.metrics["answer"], result.metrics["twice"]) == (42.0, 84.0)
    assert (
        user.validate(Sums(), {"a": iter(classification_batches(1)), "b": iter(classification_batches(1))})["answer"]
        == 42.0
    )


def test_a_callback_stops_training_and_the_trainer_says_so():
    class Stops(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == 3:
                trainer.should_stop = True
                assert trainer.should_stop

    result = trainer(Stops(), max_epochs=5).fit(Probe(), probe_batches(2))
    assert (result.status, result.global_step, result.epoch) == ("stopped", 3, 1)


def test_an_error_is_told_and_everything_ends():
    class Breaks(Probe):
        def training_step(self, batch):
            raise ZeroDivisionError("no")

    out = []
    callback = listening(
        Callback, "", out, ["on_exception", "on_keyboard_interrupt", "on_train_end", "on_fit_end", "teardown"]
    )
    told = callback()
    told.on_exception = lambda trainer, module, exception: out.append(exception)
    with pytest.raises(ZeroDivisionError) as caught:
        trainer(told).fit(Breaks(), probe_batches(1))
    assert out == [caught.value, "on_train_end", "on_fit_end", "teardown"]


def test_an_interrupt_is_told_both_ways():
    out = []

    class Interrupts(Probe):
        def on_train_batch_end(self):
            self.loop.interrupt("enough")

        def on_keyboard_interrupt(self):
            out.append("module")

    class Hears(Callback):
        def on_keyboard_interrupt(self, trainer, module):
            out.append(trainer.interrupted)

        def on_exception(self, trainer, module, exception):
            out.append(repr(exception))

    assert trainer(Hears()).fit(Interrupts(), probe_batches(4)).status == "interrupted"
    assert out == [True, "module", "KeyboardInterrupt('enough')"]


def test_state_and_checkpoints_of_callbacks_and_module():
    class Counts(Callback):
        def __init__(self):
            self.batches, self.loaded = 0, None

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.batches += 1
            if self.batches == 2:
                states.append(trainer.plugin("callbacks").state_dict())

        def on_save_checkpoint(self, trainer, module, checkpoint):
            checkpoint["step"] = trainer.global_step

        def on_load_checkpoint(self, trainer, module, checkpoint):
            self.loaded = checkpoint

        def on_fit_start(self, trainer, module):
            if states:
                trainer.plugin("callbacks").load_state_dict(states[0])

        def state_dict(self):
            return {"batches": self.batches}

        def load_state_dict(self, state):
            self.batches = state["batches"]

    class Saves(Probe):
        loaded = None

        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = [1, 2]

        def on_load_checkpoint(self, checkpoint):
            self.loaded = checkpoint

    states = []
    trainer(Counts(), Counts()).fit(Saves(), probe_batches(3))
    key = f"{Counts.__module__}.{Counts.__qualname__}"
    states = states[:1]
    assert states[0]["callbacks"] == {key: {"batches": 2}, f"{key}#2": {"batches": 1}}
    one, other, module = Counts(), Counts(), Saves()
    trainer(one, other).fit(module, probe_batches(3))
    assert (one.batches, other.batches, one.loaded, module.loaded) == (5, 4, {"step": 2}, {"mine": [1, 2]})
    with pytest.warns(UserWarning, match="which is not there any more"):
        Trainer(**ONLY).plugin("callbacks").load_state_dict({"callbacks": {"gone": {}}, "checkpoint": {}})


def test_mistakes_are_told_at_construction():
    class Misspelt(Callback):
        def on_trian_start(self, trainer, module):
            pass

    class Idle(Plugin):
        name = "idle"

    with pytest.warns(UserWarning, match="on_trian_start is the name of no event; did you mean on_train_start"):
        trainer(Misspelt())
    with pytest.raises(TypeError, match="is a plugin and not a callback"):
        trainer(Idle())
    with pytest.raises(TypeError, match=r"write Callback\(\)"):
        trainer(Callback)


def test_prepare_data_comes_first_and_once():
    out = []
    module = listening(Probe, "", out, ["prepare_data", "setup", "on_fit_start"])()
    trainer(listening(Callback, "callback.", out, ["setup"])()).fit(module, probe_batches(1))
    assert out == ["prepare_data", "callback.setup", "setup", "on_fit_start"]


def test_zeroing_shows_the_gradients_of_the_window_that_is_over():
    class Sees(Callback):
        def on_before_zero_grad(self, trainer, module, optimizer):
            seen.append((module.w.item(), module.w.grad.item()))

    seen = []
    trainer(Sees(), accumulate_grad_batches=2).fit(Probe(), probe_batches(4))
    assert seen == [(-1.5, 1.5), (-5.0, 3.5)]


class Plain(Callback):
    def on_train_start(self, trainer, module):
        self.started = True


def test_it_pickles_configured_and_after_a_run():
    user = trainer(Plain())
    pickle.dumps(user)
    user.fit(Probe(), probe_batches(1))
    assert pickle.loads(pickle.dumps(user)).plugin("callbacks")._callbacks[0].started


def test_fitting_twice_starts_clean():
    out = []
    user = trainer(listening(Callback, "", out, ["on_train_start", "on_train_end"])())
    user.fit(Probe(), probe_batches(1))
    user.fit(Probe(), probe_batches(1))
    assert out == ["on_train_start", "on_train_end"] * 2


def test_left_out_no_event_is_told():
    out = []
    module = listening(Probe, "", out, EVENTS)()
    Trainer(plugins=["-*"]).fit(module, probe_batches(1))
    assert out == []


def test_the_module_alone_is_told_of_performance_checks():
    out = []
    events = ["on_pre_performance_check", "on_validation_start", "on_validation_end", "on_post_performance_check"]
    trainer().validate(listening(TinyClassifier, "", out, events)(), classification_batches(1))
    assert out == events
    for nonsense in ([1], "ema", [None]):
        with pytest.raises(TypeError, match="methods such as on_train_start"):
            Trainer(callbacks=nonsense, **ONLY)
    assert Trainer(callbacks=None, **ONLY).fit(Probe(), probe_batches(1)).global_step == 1
