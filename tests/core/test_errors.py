"""Whatever goes wrong, wherever: the same object reaches the user with notes on where, and everything is put back."""

from __future__ import annotations

import random
import traceback
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, evaluate, hookimpl
from lightloop.testing import Probe, Recorder, TinyClassifier, classification_batches, probe_batches

BARE = "-*"


class Net(TinyClassifier):
    """Has a frozen batch norm in eval mode, and raises ``error`` in ``step`` at batch ``at``."""

    def __init__(self, error: BaseException | None = None, step: str = "training_step", at: int = 2) -> None:
        super().__init__()
        self.net.insert(1, nn.BatchNorm1d(8).eval())
        self.error, self.step, self.at = error, step, at

    def training_step(self, batch, batch_idx):
        self._raise("training_step", batch_idx)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self._raise("validation_step", batch_idx)
        random.random(), numpy.random.rand(), torch.rand(1)
        super().validation_step(batch, batch_idx)

    def _raise(self, step, batch_idx):
        if self.error is not None and (step, batch_idx) == (self.step, self.at):
            raise self.error


class Validates(Plugin):
    """Validates after each batch, where there is data for it."""

    name = "validates"

    @hookimpl
    def after_batch(self, loop):
        if "validate" in loop.eval_sources:
            evaluate(loop, "validate")


def logging_plugin(name: str, out: list[str], raises: dict[str, BaseException] | None = None) -> Plugin:
    """A plugin that writes down each of its hooks and raises in those that ``raises`` names."""

    def hook(which: str) -> Any:
        def call(self: Any, loop: Any) -> None:
            out.append(f"{which} {name}")
            if raises and which in raises:
                raise raises[which]

        return hookimpl(call)

    hooks = ("setup", "before_fit", "after_batch", "before_evaluation", "after_evaluation", "after_fit", "teardown")
    kind = type(name, (Plugin,), {"name": name, "__module__": "here", **{which: hook(which) for which in hooks}})

    def on_error(self: Any, error: BaseException) -> None:
        out.append(f"on_error {name}")
        if raises and "on_error" in raises:
            raise raises["on_error"]

    kind.on_error = hookimpl(on_error)
    return kind()


def surroundings(module: nn.Module) -> Any:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [part.training for part in module.modules()],
        [parameter.requires_grad for parameter in module.parameters()],
        module._loop,
    )


def failing_fit(module: Module, kind: type[BaseException], *plugins: Plugin, val: Any = None) -> BaseException:
    """Fit with gradients off, and hold the run to leaving everything as it was."""
    data = classification_batches(4)
    before = surroundings(module)
    with torch.no_grad():
        with pytest.raises(kind) as info:
            Trainer([BARE, *plugins]).fit(module, data, val)
        assert not torch.is_grad_enabled()
    assert surroundings(module) == before
    return info.value


ENDING = [f"{hook} {name}" for hook in ("on_error", "after_fit", "teardown") for name in "cba"]
BEGINNING = [f"{hook} {name}" for hook in ("setup", "before_fit") for name in "abc"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit])
def test_an_error_in_training_step(kind):
    out: list[str] = []
    error = kind("mine")
    module = Net(error)
    raised = failing_fit(module, kind, *[logging_plugin(name, out) for name in "cab"])
    assert raised is error
    assert raised.__notes__ == ["at epoch 0, batch 2"]
    assert (raised.__cause__, raised.__context__) == (None, None)
    assert out == [*BEGINNING, *[f"after_batch {name}" for _ in range(2) for name in "abc"], *ENDING]


@pytest.mark.parametrize(("kind", "status"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_how_the_run_ended_is_known_to_whoever_cleans_up(kind, status):
    seen = []

    class Last(Plugin):
        name = "last"

        @hookimpl
        def after_fit(self, loop):
            seen.append(loop.status)

    failing_fit(Net(kind()), kind, Last())
    assert seen == [status]


@pytest.mark.parametrize("hook", ["before_fit", "after_batch"])
def test_an_error_in_a_plugins_hook(hook):
    out: list[str] = []
    error = ValueError("mine")
    plugins = [logging_plugin("a", out), logging_plugin("b", out, {hook: error}), logging_plugin("c", out)]
    raised = failing_fit(Net(), ValueError, *plugins)
    assert raised is error
    assert raised.__notes__ == [f"in {hook} of plugin 'b' (here)", "at epoch 0, batch 0"]
    reached = BEGINNING if hook == "after_batch" else BEGINNING[:3]
    assert out == [*reached, f"{hook} a", f"{hook} b", *ENDING]


def test_an_error_in_setup_tears_down_those_whose_setup_began():
    out: list[str] = []
    error = ValueError("mine")
    plugins = [logging_plugin("a", out), logging_plugin("b", out, {"setup": error}), logging_plugin("c", out)]
    raised = failing_fit(Net(), ValueError, *plugins)
    assert raised is error
    assert raised.__notes__ == ["in setup of plugin 'b' (here)", "at epoch 0, batch 0"]
    assert out == ["setup a", "setup b", *[event for event in ENDING if not event.endswith("c")]]


def test_errors_while_cleaning_up_are_noted_on_the_first_and_stop_nobody():
    out: list[str] = []
    raises = {"on_error": OSError("x"), "after_fit": OSError("y"), "teardown": KeyError("z")}
    plugins = [logging_plugin("a", out), logging_plugin("b", out, raises), logging_plugin("c", out)]
    error = ValueError("mine")
    raised = failing_fit(Net(error), ValueError, *plugins)
    assert raised is error
    assert raised.__notes__ == [
        "at epoch 0, batch 2",
        "then also OSError: x (in on_error of plugin 'b' (here))",
        "then also OSError: y (in after_fit of plugin 'b' (here))",
        "then also KeyError: 'z' (in teardown of plugin 'b' (here))",
    ]
    assert out[-9:] == ENDING


def test_an_error_in_teardown_alone_is_raised_when_everybody_has_had_a_turn():
    out: list[str] = []
    error = OSError("late")
    plugins = [logging_plugin("a", out), logging_plugin("b", out, {"teardown": error}), logging_plugin("c", out)]
    raised = failing_fit(Net(), OSError, *plugins)
    assert raised is error
    assert raised.__notes__ == ["in teardown of plugin 'b' (here)"]
    assert out[-6:] == [event for event in ENDING if not event.startswith("on_error")]


def test_c49_c29_an_error_in_validation_step():
    out: list[str] = []
    error = ValueError("mine")
    module = Net(error, "validation_step", at=1)
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    expected = torch.rand(1).item(), random.random(), numpy.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    raised = failing_fit(module, ValueError, Validates(), logging_plugin("a", out), val=classification_batches(3))
    assert raised is error
    assert raised.__notes__ == [
        "at epoch 0, validate batch 1",
        "in after_batch of plugin 'validates' (tests.core.test_errors)",
        "at epoch 0, batch 0",
    ]
    assert (torch.rand(1).item(), random.random(), numpy.random.rand()) == expected
    assert out == [
        *["setup a", "before_fit a", "after_batch a", "before_evaluation a", "after_evaluation a"],
        *["on_error a", "after_fit a", "teardown a"],
    ]


def test_c49_validation_puts_every_mode_back():
    module = Net()
    module.net[0].eval()
    before = [part.training for part in module.modules()]
    mean = module.net[1].running_mean.clone()
    Trainer([BARE, Validates()]).fit(module, classification_batches(2), classification_batches(2))
    assert [part.training for part in module.modules()] == before
    assert torch.equal(module.net[1].running_mean, mean)
    Trainer([BARE]).validate(module, classification_batches(2))
    assert [part.training for part in module.modules()] == before


def test_c49_a_module_in_eval_mode_is_trained_in_it_with_a_warning():
    module = Net().eval()
    with pytest.warns(
        UserWarning, match="Net is in eval mode and is trained in it; call .train.. if that is not meant"
    ):
        Trainer([BARE]).fit(module, classification_batches(2))
    assert not any(part.training for part in module.modules())


def test_c29_validation_first_changes_no_shuffle():
    data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1), torch.zeros(8))

    class Seen(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))
            self.order = []

        def training_step(self, batch):
            self.order.append(int(batch[0]))
            return (batch[0] * self.w).sum()

        def validation_step(self, batch):
            torch.rand(1)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    for first in (False, True):
        module = Seen()
        torch.manual_seed(0)
        if first:
            Trainer([BARE]).validate(module, torch.utils.data.DataLoader(data))
        Trainer([BARE]).fit(module, torch.utils.data.DataLoader(data, shuffle=True))
        assert module.order == [2, 0, 5, 3, 1, 4, 7, 6]


def test_an_error_of_a_validation_alone():
    out: list[str] = []
    error = ValueError("mine")
    module = Net(error, "validation_step", at=0)
    before = surroundings(module)
    with pytest.raises(ValueError) as info:
        Trainer([BARE, logging_plugin("a", out)]).validate(module, classification_batches(2))
    assert info.value is error
    assert surroundings(module) == before
    assert out == ["setup a", "before_evaluation a", "after_evaluation a", "on_error a", "teardown a"]


def test_a_trainer_can_be_used_again_after_an_error():
    module = Net(ValueError("mine"))
    trainer = Trainer([BARE])
    with pytest.raises(ValueError):
        trainer.fit(module, classification_batches(4))
    module.error = None
    result = trainer.fit(module, classification_batches(4))
    assert (result.status, result.global_step) == ("finished", 4)


def test_a_loader_that_raises():
    error = OSError("disk")

    def batches():
        yield from classification_batches(2)
        raise error

    with pytest.raises(OSError) as info:
        Trainer([BARE]).fit(TinyClassifier(), batches())
    assert info.value is error
    assert info.value.__notes__ == ["at epoch 0, batch 2"]


def test_a_traceback_shows_the_lines_that_were_compiled():
    class Fails(Plugin):
        name = "fails"

        @hookimpl
        def after_batch(self, loop):
            raise ValueError("here")

    shown = []
    for plugins in (["-*", Fails()], ["-*", Recorder(), Fails()]):  # of two forms of one hook, each has its own lines
        with pytest.raises(ValueError, match="here") as info:
            Trainer(plugins).fit(Probe(), probe_batches(1))
        lines = [frame.line for frame in traceback.extract_tb(info.value.__traceback__) if frame.name == "after_batch"]
        shown.append(lines[0])
    assert shown == ["p0_fails(loop)", "p1_fails(loop)"]
