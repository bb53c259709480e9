"""The events that callbacks and modules receive, and their listeners."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lightloop import Callback, Loop, Plugin
from lightloop.toolkit import Fixed, Step, bind, defined, warn

ORDERS = {
    name: tuple(inspect.signature(method).parameters)[1:]
    for name, method in inspect.getmembers(Callback, inspect.isfunction)
    if not name.endswith("state_dict")
}
"""The events, and the order of their arguments."""
ORDERS |= dict.fromkeys(
    ("prepare_data", "on_pre_performance_check", "on_post_performance_check"), ("trainer", "module")
)
SAVED = ("on_save_checkpoint", "on_load_checkpoint")
"""Those that belong to no hook of a run."""

TRAINING = {
    "before_fit": ("on_fit_start",),
    "before_epoch": ("on_train_start", "on_epoch_start", "on_train_epoch_start"),
    "before_batch": ("on_batch_start", "on_train_batch_start"),
    "before_backward": ("on_before_backward",),
    "after_backward": ("on_after_backward",),
    "before_step": ("on_before_optimizer_step",),
    "zero_grad": ("on_before_zero_grad",),
    "after_batch": ("on_train_batch_end", "on_batch_end"),
    "after_epoch": ("on_train_epoch_end", "on_epoch_end"),
}
"""What is told in each hook of the loop, in this order."""
EVALUATION = {
    "before_evaluation": ("on_pre_performance_check", "on_{}_start", "on_{}_epoch_start"),
    "before_evaluation_batch": ("on_{}_batch_start",),
    "after_evaluation_batch": ("on_{}_batch_end",),
    "after_evaluation_batches": ("on_{}_epoch_end",),
    "after_evaluation": ("on_{}_end", "on_post_performance_check"),
}
"""The same for a pass over evaluation data, with the word for its stage."""
WORDS = {"validate": "validation", "test": "test", "predict": "predict"}


def training_outputs(loop: Loop) -> dict[str, Any] | None:
    """What the batch's last training_step returned, as a mapping with ``loss``, tensors detached."""
    if not loop.pieces or loop.output is None:
        return None
    output = loop.output if isinstance(loop.output, Mapping) else {"loss": loop.output}
    return {name: value.detach() if isinstance(value, Tensor) else value for name, value in output.items()}


COMMON: dict[str, Any] = {
    "trainer": "loop.trainer",
    **dict.fromkeys(("module", "pl_module"), "loop.module"),
    "loop": "loop",
    "stage": "loop.stage",
    "epoch": "loop.epoch",
    "global_step": "loop.global_step",
}
IN_TRAINING = COMMON | {
    "batch": "loop.batch",
    **dict.fromkeys(("batch_idx", "batch_nb"), "loop.batch_idx"),
    "dataloader_idx": Fixed(0),
    "outputs": training_outputs,
    "loss": "loop.loss",
    "optimizer": "loop.optimizer",
    **dict.fromkeys(("optimizer_idx", "opt_idx"), "loop.optimizer_idx"),
}
IN_EVALUATION = COMMON | {
    "batch": "loop.evaluation.batch",
    **dict.fromkeys(("batch_idx", "batch_nb"), "loop.evaluation.batch_idx"),
    "dataloader_idx": "loop.evaluation.loader_idx",
    "outputs": "loop.evaluation.output",
}


def listeners(
    callbacks: Sequence[Any], module: nn.Module, event: str, extra: Mapping[str, Callable[[Loop], Any]]
) -> list[Step]:
    """The calls of those who have a method for ``event``: callbacks first, the module last."""
    arguments = {**(IN_EVALUATION if any(word in event for word in WORDS.values()) else IN_TRAINING), **extra}
    order = ORDERS[event]
    methods = [(method, order) for callback in callbacks if (method := own(callback, event))]
    if (method := defined(module, event)) is not None:
        methods.append((method, order[2:]))
    return [bind(method, order, arguments) for method, order in methods]


def own(receiver: Any, name: str) -> Callable[..., Any] | None:
    """The method of ``receiver``, if it is more than the empty one of :class:`Callback`."""
    method = defined(receiver, name)
    return None if getattr(method, "__func__", method) is vars(Callback).get(name) else method


def check_callback(callback: Any) -> None:
    """Refuse what is no callback, and warn of methods that look like events and are none."""
    if isinstance(callback, Plugin):
        raise TypeError(f"{callback!r} is a plugin and not a callback: give it in plugins=[...]")
    if isinstance(callback, type):
        raise TypeError(f"callbacks must be objects; {callback.__name__} is a class: write {callback.__name__}()")
    if not any(name in ORDERS or name.startswith("on_") for name in dir(callback)):
        raise TypeError(f"callbacks must be objects with methods such as on_train_start; {callback!r} has none of them")
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in ORDERS:
            near = difflib.get_close_matches(name, ORDERS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warn(f"{type(callback).__name__}.{name} is the name of no event{hint}")
