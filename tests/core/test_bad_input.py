"""What cannot be trained is refused in words that a stranger understands, before training where it can be known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader

from lightloop import Module, Trainer
from lightloop.testing import Probe, Recorder, TinyClassifier, classification_batches, probe_batches

BARE = "-*"


def refused(kind: type[BaseException], module: Any, *data: Any, **options: Any) -> tuple[str, list[str]]:
    """What the error says, and the events of the run up to it."""
    recorder = Recorder()
    with pytest.raises(kind) as info:
        Trainer([BARE, recorder], **options).fit(module, *data)
    return str(info.value), recorder.events


def before_training(kind: type[BaseException], module: Any, *data: Any) -> str:
    text, events = refused(kind, module, *data)
    assert "before_fit" not in events
    return text


def stepping(step: Any) -> Module:
    return type("Net", (Probe,), {"training_step": step})()


def configured(configure: Any) -> Module:
    return type("Net", (Probe,), {"configure_optimizers": configure})()


# ------------------------------------------------------------------------------------------------------------- modules


def test_what_is_no_module():
    assert before_training(TypeError, TinyClassifier, probe_batches()) == (
        "module must be a torch.nn.Module; it is the class TinyClassifier; make one, TinyClassifier(...)"
    )
    assert before_training(TypeError, 3, probe_batches()) == "module must be a torch.nn.Module; it is 3"
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module; it is None"):
        Trainer([BARE]).validate(None, [])


def test_no_training_step():
    text = "Linear has no training_step: define training_step(self, batch, batch_idx)"
    assert before_training(TypeError, nn.Linear(1, 1), probe_batches()) == text
    module = nn.Linear(1, 1)
    module.training_step = None
    assert before_training(TypeError, module, probe_batches()) == text
    module.training_step = 3
    assert before_training(TypeError, module, probe_batches()) == "Linear.training_step must be a function; it is int"


def test_no_step_for_a_stage():
    for stage in ("validate", "test"):
        step = {"validate": "validation_step", "test": "test_step"}[stage]
        with pytest.raises(TypeError) as info:
            getattr(Trainer([BARE]), stage)(Probe(), probe_batches())
        assert str(info.value) == f"Probe has no {step}: define {step}(self, batch, batch_idx)"


CAN = "It can take (batch, batch_idx) by position or by name; by name also optimizer_idx, epoch, global_step, loop"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda self: None, "<lambda>() cannot be called: it must take batch. " + CAN),
        (lambda self, batch_idx: None, "<lambda>(batch_idx) cannot be called: it must take batch. " + CAN),
        (lambda self, *, x: None, "<lambda>(*, x) cannot be called: there is no argument 'x'. " + CAN),
        (lambda self, batch, i, idx: None, "there is no argument for 'idx'. " + CAN),
    ],
)
def test_a_step_that_cannot_be_called(step, text):
    found = before_training(TypeError, stepping(step), probe_batches())
    assert found.endswith(text)
    assert "<lambda>" in found


# ------------------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize(
    ("step", "kind", "text"),
    [
        (
            lambda self, batch: torch.stack([self.w, self.w]),
            ValueError,
            "the loss must be one number; training_step returned shape (2,). Take its mean",
        ),
        (
            lambda self, batch: (batch * self.w).detach(),
            ValueError,
            "the loss needs no gradient: it does not depend on a parameter that requires one. Look for .detach(), "
            ".item(), torch.no_grad() or frozen parameters on its way",
        ),
        (
            lambda self, batch: (batch * self.w).item(),
            TypeError,
            "training_step must return a tensor, a mapping with 'loss', or None; it returned float",
        ),
        (
            lambda self, batch: (batch * self.w, batch),
            TypeError,
            "training_step must return a tensor, a mapping with 'loss', or None; it returned tuple",
        ),
        (
            lambda self, batch: {"los": batch * self.w, "x": 1},
            ValueError,
            "training_step returned a mapping without 'loss'; its keys are los, x",
        ),
        (
            lambda self, batch: {"loss": "high"},
            TypeError,
            "training_step must return a tensor, a mapping with 'loss', or None; it returned str",
        ),
    ],
)
def test_what_is_no_loss(step, kind, text):
    assert refused(kind, stepping(step), probe_batches())[0] == text


def test_a_frozen_module_has_no_loss():
    module = TinyClassifier()
    module.freeze()
    with pytest.warns(UserWarning, match="eval mode"):
        text, _ = refused(ValueError, module, classification_batches())
    assert text.startswith("the loss needs no gradient")


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (-1, "-1"),
        (True, "True"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ("3", "'3'"),
        (torch.ones(2), "a tensor of shape (2,)"),
    ],
)
def test_what_is_no_weight(weight, found):
    module = stepping(lambda self, batch: {"loss": batch * self.w, "weight": weight})
    assert refused(ValueError, module, probe_batches())[0] == (
        "the weight that training_step returns must be one number from 0, such as how many tokens were scored; "
        f"it is {found}"
    )


# --------------------------------------------------------------------------------------------------------------- data


def test_no_data():
    assert before_training(ValueError, Probe()) == (
        "nothing to train on: pass fit(module, train), or define Probe.train_dataloader"
    )
    module = TinyClassifier()
    module.test_step = module.validation_step
    with pytest.raises(
        ValueError, match=r"^no data to test: pass test\(module, data\), or define TinyClassifier\.test_data"
    ):
        Trainer([BARE]).test(module)


def test_an_empty_loader():
    text = "the training data has no batches; nothing can be learnt from it"
    assert before_training(ValueError, Probe(), []) == text
    empty = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(0)))
    assert before_training(ValueError, Probe(), empty) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (3, "the training data must be a DataLoader or any other iterable of batches; int cannot be iterated over"),
        (torch.zeros(3), "the training data must give batches; wrap this Tensor in a list or a DataLoader"),
        ("abc", "the training data must give batches; wrap this str in a list or a DataLoader"),
        (
            torch.utils.data.TensorDataset(torch.zeros(3)),
            "the training data must give batches; TensorDataset gives samples: wrap it in a DataLoader",
        ),
        ({"a": [1], "b": [2]}, "the training data must be one loader; this dict has a, b"),
    ],
)
def test_what_is_no_data(data, text):
    assert before_training(TypeError, Probe(), data) == text


def test_a_module_that_gives_no_data():
    module = type("Net", (Probe,), {"train_dataloader": lambda self: None})()
    assert before_training(TypeError, module) == (
        "the training data must be a DataLoader or any other iterable of batches; NoneType cannot be iterated over"
    )


def test_data_comes_from_the_module_where_none_is_given():
    class Own(TinyClassifier):
        val_dataloader = classification_batches(2, seed=1)
        test_step = TinyClassifier.validation_step

        def train_dataloader(self):
            return classification_batches(3)

        def test_dataloader(self):
            return classification_batches(1)

        def predict_dataloader(self):
            return [x for x, _ in classification_batches(2)]

    trainer, module = Trainer([BARE]), Own()
    assert trainer.fit(module).global_step == 3
    assert trainer.fit(module, classification_batches(2)).global_step == 2
    assert list(trainer.validate(module)) == ["val_loss"]
    assert list(trainer.test(module)) == ["val_loss"]
    assert [output.shape for output in trainer.predict(module)] == [(8, 3), (8, 3)]


# --------------------------------------------------------------------------------------------------------- optimizers

STEPS = torch.optim.lr_scheduler.StepLR
PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau


def sgd(module: nn.Module, **how: Any) -> SGD:
    return SGD(module.parameters(), lr=0.1, **how)


def setup_of(configure: Any) -> tuple[Any, Any, Any]:
    """What the loop made of it: how many optimizers, the schedules, the frequencies."""
    trainer = Trainer([BARE])
    trainer.fit(configured(configure), probe_batches(1))
    loop = trainer.loop
    schedules = [
        (type(each.scheduler).__name__, each.optimizer_idx, each.interval, each.frequency, each.monitor, each.strict)
        for each in loop.schedules
    ]
    return len(loop.optimizers), schedules, loop.frequencies


EPOCH = ("StepLR", 0, "epoch", 1, None, True)


def scheduled(module: nn.Module, **how: Any) -> dict[str, Any]:
    optimizer = sgd(module)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": STEPS(optimizer, 1), **how}}


def pair(module: nn.Module) -> tuple[list[Any], list[Any]]:
    optimizers = [sgd(module), Adam(module.parameters())]
    return optimizers, [STEPS(optimizers[1], 1), {"scheduler": STEPS(optimizers[0], 1), "interval": "step"}]


def plateau(module: nn.Module, **how: Any) -> dict[str, Any]:
    optimizer = sgd(module)
    return {"optimizer": optimizer, "lr_scheduler": PLATEAU(optimizer), **how}


@pytest.mark.parametrize(
    ("configure", "optimizers", "schedules", "frequencies"),
    [
        (sgd, 1, [], []),
        (lambda m: [sgd(m)], 1, [], []),
        (lambda m: (sgd(m), Adam(m.parameters())), 2, [], []),
        (lambda m: {"optimizer": sgd(m)}, 1, [], []),
        (scheduled, 1, [EPOCH], []),
        (
            lambda m: [scheduled(m, interval="step", frequency=3, name="x")],
            1,
            [("StepLR", 0, "step", 3, None, True)],
            [],
        ),
        (
            pair,
            2,
            [("StepLR", 1, "epoch", 1, None, True), ("StepLR", 0, "step", 1, None, True)],
            [],
        ),
        (lambda m: ([o := sgd(m)], [STEPS(o, 1)]), 1, [EPOCH], []),
        (lambda m: ([sgd(m)], []), 1, [], []),
        (
            lambda m: [{"optimizer": sgd(m), "frequency": 2}, {"optimizer": sgd(m), "frequency": 1}],
            2,
            [],
            [2, 1],
        ),
        (lambda m: plateau(m, monitor="loss"), 1, [("ReduceLROnPlateau", 0, "epoch", 1, "loss", True)], []),
        (
            lambda m: {
                "optimizer": (o := sgd(m)),
                "lr_scheduler": {"scheduler": PLATEAU(o), "strict": False},
                "monitor": "loss",
            },
            1,
            [("ReduceLROnPlateau", 0, "epoch", 1, "loss", False)],
            [],
        ),
    ],
)
def test_every_form_of_configure_optimizers(configure, optimizers, schedules, frequencies):
    assert setup_of(configure) == (optimizers, schedules, frequencies)


@pytest.mark.parametrize(
    ("count", "says"),
    [(1, "a list of 1: give the DataLoader itself"), (2, "a list of 2: to read one after the other, give an object")],
)
def test_several_loaders_to_train_on(count, says):
    loaders = [DataLoader(torch.arange(4.0)) for _ in range(count)]
    assert says in before_training(TypeError, Probe(), loaders)
    with pytest.raises(TypeError, match=f"the training data must be one loader, and this is a tuple of {count}"):
        Trainer([BARE]).fit(Probe(), tuple(loaders))


@pytest.mark.parametrize("configure", [None, lambda self: None, lambda self: [], lambda self: ([], [])])
def test_no_optimizer_is_told(configure):
    module = configured(configure)
    with pytest.warns(UserWarning, match="has no optimizer") as warned:
        result = Trainer([BARE]).fit(module, probe_batches(2))
    assert [str(w.message) for w in warned] == [
        "Net has no optimizer: the loss that training_step returns is not used, and nothing is trained. Return one from "
        "configure_optimizers"
    ]
    assert (module.seen, result.global_step, module.w.item()) == ([1.0, 2.0], 2, 0.0)


FORMS = (
    "configure_optimizers must return an optimizer, a list of optimizers, ([optimizers], [lr_schedulers]), or a mapping "
    "with 'optimizer' and perhaps 'lr_scheduler', or a list of such mappings; found "
)
WHOLE = "must be a whole number from 1; it is "


@pytest.mark.parametrize(
    ("configure", "kind", "text"),
    [
        (lambda m: 3, TypeError, FORMS + "3"),
        (lambda m: "sgd", TypeError, FORMS + "'sgd'"),
        (lambda m: SGD, TypeError, FORMS + "<class 'torch.optim.sgd.SGD'>"),
        (lambda m: [None], TypeError, FORMS + "None"),
        (lambda m: {}, TypeError, FORMS + "None"),
        (lambda m: {"optimizer": None}, TypeError, FORMS + "None"),
        (lambda m: (sgd(m), [STEPS(sgd(m), 1)]), TypeError, FORMS + "[<torch.optim.lr_scheduler.StepLR"),
        (
            lambda m: {"optimizer": sgd(m), "scheduler": 1},
            ValueError,
            "configure_optimizers has the unknown key 'scheduler'; the known ones are frequency, lr_scheduler, monitor, "
            "optimizer",
        ),
        (
            lambda m: scheduled(m, every=1),
            ValueError,
            "lr_scheduler has the unknown key 'every'; the known ones are frequency, interval, monitor, name, "
            "reduce_on_plateau, scheduler, strict",
        ),
        (
            lambda m: [{"optimizer": sgd(m), "frequency": 2}, {"optimizer": sgd(m)}],
            ValueError,
            "configure_optimizers gives a frequency to some optimizers but not to all; give one to each or to none",
        ),
        (
            lambda m: [{"optimizer": sgd(m), "frequency": 0}],
            ValueError,
            "the frequencies of configure_optimizers must be whole numbers from 1; they are [0]",
        ),
        (
            lambda m: [{"optimizer": sgd(m), "frequency": True}],
            ValueError,
            "the frequencies of configure_optimizers must be whole numbers from 1; they are [True]",
        ),
        (
            lambda m: scheduled(m, interval="batches"),
            ValueError,
            "an lr_scheduler's interval must be one of step, epoch, batch; it is 'batches'",
        ),
        (lambda m: scheduled(m, frequency=0), ValueError, f"an lr_scheduler's frequency {WHOLE}0"),
        (lambda m: scheduled(m, frequency=1.5), ValueError, f"an lr_scheduler's frequency {WHOLE}1.5"),
        (
            lambda m: ([sgd(m)], [3]),
            TypeError,
            "an lr_scheduler must have a step method; found 3",
        ),
        (
            lambda m: ([sgd(m)], [STEPS]),
            TypeError,
            "an lr_scheduler must have a step method; found <class 'torch.optim.lr_scheduler.StepLR'>",
        ),
        (
            lambda m: ([sgd(m)], [STEPS(sgd(m), 1)]),
            ValueError,
            "the lr_scheduler StepLR is of an optimizer that configure_optimizers does not return",
        ),
        (
            lambda m: ([], [STEPS(sgd(m), 1)]),
            ValueError,
            "configure_optimizers returns an lr_scheduler but no optimizer",
        ),
        (
            plateau,
            ValueError,
            "ReduceLROnPlateau needs a metric: return {'scheduler': ..., 'monitor': 'val_loss'} from configure_optimizers",
        ),
        (
            lambda m: [o := sgd(m), o],
            ValueError,
            "configure_optimizers returns one optimizer twice: it would step twice in each window",
        ),
        (
            lambda m: SGD(nn.Linear(1, 1).parameters(), lr=0.1),
            ValueError,
            "SGD has none of the parameters of Net: training would change nothing. Build it from self.parameters() "
            "inside configure_optimizers",
        ),
    ],
)
def test_every_misform_of_configure_optimizers(configure, kind, text):
    assert before_training(kind, configured(configure), probe_batches(1))[: len(text)] == text


# ------------------------------------------------------------------------------------------------------------ logging


def logging(name: Any = "x", value: Any = 1.0, **how: Any) -> str:
    def step(self, batch):
        self.log(name, value, **how)
        return batch * self.w

    with pytest.raises((ValueError, TypeError)) as info:
        Trainer([BARE]).fit(stepping(step), probe_batches(1))
    return str(info.value)


def test_what_cannot_be_logged():
    assert logging(value=torch.ones(2, 3)) == (
        "metric 'x' must be one number; it is a tensor of shape (2, 3). Log its mean, or each part"
    )
    assert logging(value=None) == "metric 'x' must be a number or a tensor of one element; it is NoneType"
    assert logging(value="high") == "metric 'x' must be a number or a tensor of one element; it is str"
    assert logging(name="") == "a metric's name must be text; it is ''"
    assert logging(name=3) == "a metric's name must be text; it is 3"
    assert logging(reduce="avg") == "metric 'x': reduce must be one of mean, sum, min, max, last; it is 'avg'"


def test_a_step_has_no_meaning_in_evaluation():
    class Wrong(TinyClassifier):
        def validation_step(self, batch):
            self.log("x", 1.0, on_step=True)

    with pytest.raises(
        ValueError, match=r"^metric 'x': on_step=True has no meaning in evaluation, which takes no steps"
    ):
        Trainer([BARE]).validate(Wrong(), classification_batches(1))


def test_logging_outside_a_run_is_told():
    with pytest.raises(RuntimeError) as info:
        TinyClassifier().log("x", 1.0)
    assert str(info.value) == "TinyClassifier is not being trained or evaluated; loop and log work only in a run"


def test_a_module_inside_the_users_wrapper_logs_too():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def training_step(self, batch, batch_idx):
            return self.inner.training_step(batch, batch_idx)

        def configure_optimizers(self):
            return self.inner.configure_optimizers()

    module = Wrapper(TinyClassifier())
    assert list(Trainer([BARE]).fit(module, classification_batches(1)).metrics) == ["loss"]
    assert module.inner._loop is None


def test_a_run_inside_a_run_gives_the_module_back():
    class Nested(TinyClassifier):
        def training_step(self, batch, batch_idx):
            Trainer([BARE]).validate(self, classification_batches(1))
            return super().training_step(batch, batch_idx)

    assert list(Trainer([BARE]).fit(Nested(), classification_batches(2)).metrics) == ["loss"]


def test_a_run_of_the_same_trainer_inside_a_run_is_refused():
    class Nested(TinyClassifier):
        def training_step(self, batch, batch_idx):
            with pytest.raises(RuntimeError, match="in the middle of a run, so it cannot validate as well"):
                self.trainer.validate(self, classification_batches(1))
            return super().training_step(batch, batch_idx)

    trainer = Trainer([BARE])
    module = Nested()
    trainer.fit(module, classification_batches(2))
    assert trainer.global_step == 2
    trainer.validate(module, classification_batches(1))
    trainer.validate(module, classification_batches(1))
    trainer.fit(TinyClassifier(), classification_batches(1))


def test_training_inside_no_grad_and_inference_mode_trains():
    for context in (torch.no_grad, torch.inference_mode):
        module, data = Probe(), probe_batches(2)
        with context():
            Trainer([BARE]).fit(module, data)
        assert module.w.item() == -3.0
