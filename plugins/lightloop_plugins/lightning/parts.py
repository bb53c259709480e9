"""Detect objects of Lightning in a run, and which of their methods the user overrides."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The names under which Lightning is imported."""
REFUSED = {
    "ModelCheckpoint": "write Trainer(monitor=..., save_top_k=..., save_every=...)",
    "OnExceptionCheckpoint": "a checkpoint is saved on an exception by Trainer(save_on_exception=True)",
    "GradientAccumulationScheduler": "write Trainer(accumulate_grad_batches={epoch: batches})",
    "StochasticWeightAveraging": "write Trainer(swa_start=...)",
    "WeightAveraging": "write Trainer(swa_start=...) or Trainer(ema_decay=...)",
    "EMAWeightAveraging": "write Trainer(ema_decay=...)",
    "BatchSizeFinder": "write Trainer(auto_scale_batch_size=True)",
    "LearningRateFinder": "write Trainer(auto_lr_find=True)",
    "ProgressBar": "the plugin progress is live by default",
    "ModelSummary": "write Trainer(weights_summary='full')",
    "DeviceStatsMonitor": "write Trainer(log_device_stats=50)",
    "ThroughputMonitor": "write Trainer(plugins=['throughput'])",
    "BasePredictionWriter": "Trainer.predict returns the predictions",
    "SpikeDetection": "write Trainer(nonfinite='skip_step') for losses that are not finite",
}
"""Callbacks that reach into parts of Lightning which are not there, and what to write instead."""
ABSENT = object()
EVENTS = ("setup", "teardown", "prepare_data")
MODULE_METHODS = (
    *("training_step", "validation_step", "test_step", "predict_step", "configure_optimizers", "backward"),
    *("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step"),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader"),
    *("transfer_batch_to_device", *EVENTS),
)
"""The methods of a module, beside its events, that the loop looks for."""
TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""The methods of a module or data module through which each batch goes, in this order."""
CALLBACK_METHODS = (*EVENTS, "state_dict", "load_state_dict")
"""The same of a callback."""


def is_imported() -> bool:
    """Whether the program uses Lightning."""
    return any(package in sys.modules for package in PACKAGES)


def bases(kind: str) -> tuple[type, ...]:
    """The classes of Lightning that are called ``kind``, as far as somebody has imported them."""
    found = [getattr(sys.modules.get(package), kind, None) for package in PACKAGES]
    return tuple(base for base in found if isinstance(base, type))


def instances(things: Iterable[Any], kind: str) -> list[Any]:
    """Those of ``things`` that are of Lightning's class ``kind``."""
    known = bases(kind)
    return [thing for thing in things if isinstance(thing, known)] if known else []


def overrides(thing: Any, name: str) -> bool:
    """Whether ``thing`` has a method ``name`` that somebody else than Lightning has written."""
    if name in vars(thing):
        return vars(thing)[name] is not None
    owner = next((base for base in type(thing).__mro__ if name in vars(base)), None)
    return owner is not None and not owner.__module__.startswith(("lightning.pytorch.core", "pytorch_lightning.core"))


def hide(thing: Any, kind: str, methods: Sequence[str], instead: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Let the methods that ``thing`` merely inherits from ``kind`` be None; returns what :func:`show` needs."""
    (base, *_) = [base for base in bases(kind) if isinstance(thing, base)]
    new: dict[str, Any] = dict(instead or {})
    for name in dir(base):
        if name.startswith("on_") or name in methods:
            inherited = getattr(type(thing), name, None) is getattr(base, name)
            if inherited and vars(thing).get(name) is None:
                new[name] = None
    before = {name: vars(thing).get(name, ABSENT) for name in new}
    vars(thing).update(new)
    return before


def show(thing: Any, hidden: Mapping[str, Any]) -> None:
    """Let ``thing`` be as it was before :func:`hide`."""
    for name, value in hidden.items():
        vars(thing).pop(name, None)
        if value is not ABSENT:
            vars(thing)[name] = value


def check_callbacks(callbacks: Iterable[Any]) -> None:
    """Refuse callbacks of Lightning that cannot do their work here."""
    for callback in callbacks:
        for name in [base.__name__ for base in type(callback).__mro__ if base.__module__.startswith(PACKAGES)]:
            if name in REFUSED:
                raise TypeError(f"Lightning's callback {type(callback).__name__} cannot be carried: {REFUSED[name]}")


def check_module(module: Any) -> None:
    """Refuse what a module asks of Lightning's trainer and cannot have."""
    for name, instead in (
        ("configure_callbacks", "give its callbacks to Trainer(callbacks=[...])"),
        ("configure_sharded_model", "call it configure_model"),
    ):
        if overrides(module, name):
            raise TypeError(f"{type(module).__name__}.{name} is not called here: {instead}")
