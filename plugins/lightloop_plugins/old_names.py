"""Support the old names that code for older training libraries uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import defined, warn

ARGUMENTS = {"batch_nb": "batch_idx", "optimizer_i": "optimizer_idx", "dataloader_i": "dataloader_idx"}
"""What arguments of steps were called."""
STEPS = ("training_step", "validation_step", "test_step", "predict_step")
GONE = {
    "print_nan_grads": "terminate_on_nan=True ends with the parameter's name, nonfinite='warn' goes on with a warning",
    "weights_save_path": "default_root_dir says where a run leaves what it writes, checkpoints included",
}
"""Options that are no more, and what to write instead."""


class OldNames(Plugin):
    """Accept old names of step arguments and Trainer attributes, each with a DeprecationWarning.

    Old names of options are those options' own business: :func:`lightloop.option`, ``aliases``. Here are the ones that
    mean nothing any more. What a module returns from ``get_progress_bar_dict`` is shown on the progress bar.
    """

    name = "old_names"
    after = ("accelerator", "strategy", "progress", "callbacks")
    default = True
    arguments = ("optimizer_i", "dataloader_i")
    exposes: ClassVar[Mapping[str, str]] = {
        "progress_bar_dict": "progress_bar_dict",  # of the plugin progress where that is live
        "training_tqdm_dict": "training_tqdm_dict",
        "batch_nb": "batch_nb",
    }
    transient = ("_trainer", "_shown", "_batch_idx", "_bar")

    print_nan_grads: bool = option(False, "Gone; the error says what to write.", flag="print_nan_grads", enables=False)
    weights_save_path: str | None = option(
        None, "Gone; the error says what to write.", flag="weights_save_path", enables=False
    )

    def validate(self) -> None:
        for name, instead in GONE.items():
            if getattr(self, name):
                raise ValueError(f"{name} is gone: {instead}")
        self._trainer: Any = None
        self._shown: dict[str, float] = {}
        self._batch_idx = 0
        self._bar: Callable[[], Mapping[str, Any]] | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._trainer = loop.trainer
        for step in STEPS:
            for old in _parameters(defined(loop.module, step)) & ARGUMENTS.keys():
                new = ARGUMENTS[old]
                _say(f"the argument {old!r} of {step}", new)
                if step == "training_step" and new in loop.step_arguments:
                    loop.step_arguments[old] = loop.step_arguments[new]
                else:
                    loop.evaluation_arguments[old] = EVALUATION[new]
        self._bar = defined(loop.module, "get_progress_bar_dict")
        if self._bar is None:
            loop.opt_out(self, "after_batch")

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        assert self._bar is not None
        for name, value in self._bar().items():
            if name not in loop.metrics.step and isinstance(value, (int, float)):
                loop.metrics.put(name, value)
                loop.metrics.on_bar.add(name)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._trainer is not None:
            self._shown, self._batch_idx = dict(self._trainer.progress_bar_dict), self._trainer.batch_idx
            self._trainer = None
        self._bar = None

    @property
    def progress_bar_dict(self) -> dict[str, float]:
        """What a progress bar would show."""
        return self._shown if self._trainer is None else dict(self._trainer.progress_bar_metrics)

    @property
    def training_tqdm_dict(self) -> dict[str, float]:
        """What ``progress_bar_dict`` was called."""
        _say("trainer.training_tqdm_dict", "progress_bar_dict")
        return self._shown if self._trainer is None else dict(self._trainer.progress_bar_dict)

    @property
    def batch_nb(self) -> int:
        """What ``batch_idx`` was called."""
        _say("trainer.batch_nb", "batch_idx")
        return self._batch_idx if self._trainer is None else int(self._trainer.batch_idx)


EVALUATION = {"batch_idx": "loop.evaluation.batch_idx", "dataloader_idx": "loop.evaluation.loader_idx"}


def _parameters(step: Callable[..., Any] | None) -> set[str]:
    return set() if step is None else set(inspect.signature(step).parameters)


def _say(old: str, new: str) -> None:
    warn(f"{old} is now called {new!r}", DeprecationWarning)
