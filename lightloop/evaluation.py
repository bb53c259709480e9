"""The validation, test and prediction loops: one pass over one or several loaders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightloop.exceptions import add_note, context
from lightloop.inputs.data import as_loaders, check_loader, with_is_last
from lightloop.inputs.signatures import Argument, Fixed, Step, bind, defined
from lightloop.metrics import Running
from lightloop.randomness import keep_random

if TYPE_CHECKING:
    from lightloop.state import Stage, State

STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}
"""The method of the module that a stage calls."""


class Evaluation:
    """The state of a pass over evaluation data: position and results; ``loop.evaluation`` during the pass."""

    def __init__(
        self, stage: Stage, loaders: dict[str | None, Iterable[Any]], step: Step, sanity: bool = False
    ) -> None:
        self.stage: Stage = stage
        self.loaders = loaders
        self.step = step
        self.sanity = sanity
        """Whether this is the sanity check before training, whose metrics are discarded."""
        self.loader_name: str | None = None
        self.loader_idx = 0
        self.batch: Any = None
        self.batch_idx = 0
        self.is_last_batch = False
        self.output: Any = None
        self.outputs: list[list[Any]] = []
        """Predictions, by loader and batch; filled by the predict stage alone."""
        self.metrics: dict[str, float] = {}
        """The metrics of the pass, over all ranks; empty until it is over."""

    def metric_name(self, name: str) -> str:
        """Return the name under which a metric is stored: with the loader's name if there are several loaders."""
        return name if self.loader_name is None else f"{name}/{self.loader_name}"


ARGUMENTS: dict[str, Argument] = {
    "batch": "loop.evaluation.batch",
    "batch_idx": "loop.evaluation.batch_idx",
    "dataloader_idx": "loop.evaluation.loader_idx",
    "epoch": "loop.epoch",
    "global_step": "loop.global_step",
    "loop": "loop",
}
ORDER = ("batch", "batch_idx", "dataloader_idx")
"""What a step of evaluation is given by position."""
ELSEWHERE = {"optimizer_idx": "it is an argument of training_step"}
"""What is no argument of a step of evaluation, and not to be filled by position."""


def eval_loaders(loop: State, stage: Stage) -> dict[str | None, Iterable[Any]]:
    """Return the loaders of ``stage`` by name, created and prepared by the plugins once; empty if there are none."""
    if stage not in loop.eval_loaders:
        source = loop.eval_sources.get(stage)
        loaders = as_loaders(source() if source else None)
        for loader in loaders.values():
            check_loader(loader, f"the data to {stage}")
        loop.eval_loaders[stage] = {name: loop.prepared(loader, stage) for name, loader in loaders.items()}
    return loop.eval_loaders[stage]


def evaluate(
    loop: State, stage: Stage, loaders: dict[str | None, Iterable[Any]] | None = None, *, sanity: bool = False
) -> Evaluation:
    """Run one pass over evaluation data; afterwards, gradients, modes and random state are as before.

    Inside a fit the open window is not touched. ``loop.evaluation`` is set while the pass lasts. Without loaders nothing
    happens; what is logged in a ``sanity`` check is forgotten.

    Raises:
        TypeError: if the module has no step for the stage.
    """
    function, order = _step_of(loop.module, stage)
    loaders = eval_loaders(loop, stage) if loaders is None else loaders
    arguments = {**ARGUMENTS, **loop.evaluation_arguments}
    if len(loaders) < 2:
        arguments["dataloader_idx"] = Fixed(0)
    evaluation = Evaluation(stage, loaders, bind(function, order, arguments, ("batch",), ELSEWHERE), sanity)
    if not evaluation.loaders:
        return evaluation
    with _aside(loop, sanity), _modes_kept(loop.module), torch.no_grad(), _random_kept():
        loop.evaluation = evaluation
        loop.module.eval()
        try:
            loop.hook.before_evaluation(loop=loop, evaluation=evaluation)  # type: ignore[arg-type]
            _run_batches(loop, evaluation)
            loop.hook.after_evaluation_batches(loop=loop, evaluation=evaluation)  # type: ignore[arg-type]
            evaluation.metrics = loop.metrics.take_epoch(loop.world, keep=not sanity)
        except BaseException as error:
            add_note(error, f"at {loop.where()}")
            loop.hook.conclude("after_evaluation", error=error, loop=loop, evaluation=evaluation)
            raise
        loop.hook.conclude("after_evaluation", loop=loop, evaluation=evaluation)
    return evaluation


def _step_of(module: nn.Module, stage: Stage) -> tuple[Callable[..., Any], Sequence[str]]:
    """Return the function that evaluates a batch, and the names of its positional arguments."""
    step = defined(module, STEPS[stage])
    if step is None and stage == "predict":
        return _whole(module), ORDER[:1]
    if step is None:
        raise TypeError(f"{type(module).__name__} has no {STEPS[stage]}: define it, or give no data to {stage}")
    return step, ORDER


def _run_batches(loop: State, evaluation: Evaluation) -> None:
    for evaluation.loader_idx, (evaluation.loader_name, loader) in enumerate(evaluation.loaders.items()):
        evaluation.outputs.append([])
        what = f"the data to {evaluation.metric_name(evaluation.stage)}"
        batches = with_is_last(loader, 0, None, what, loop.wrong_lengths)
        for evaluation.batch_idx, (evaluation.batch, evaluation.is_last_batch) in enumerate(batches):
            _run_batch(loop, evaluation)
            evaluation.batch = loop._counted = None
    evaluation.loader_name = None


def _run_batch(loop: State, evaluation: Evaluation) -> None:
    hook = loop.hook
    evaluation.batch = hook.move_batch(loop=loop, batch=evaluation.batch)  # type: ignore[arg-type]
    hook.before_evaluation_batch(loop=loop, evaluation=evaluation)  # type: ignore[arg-type]
    evaluation.output = None if evaluation.batch is None else hook.evaluate_batch(loop=loop, evaluation=evaluation)  # type: ignore[arg-type]
    if evaluation.stage == "predict":
        evaluation.outputs[-1].append(evaluation.output)
    hook.after_evaluation_batch(loop=loop, evaluation=evaluation)  # type: ignore[arg-type]


def _whole(module: nn.Module) -> Callable[..., Any]:
    """Return ``module`` itself as a step: called with its forward hooks, by the signature of its ``forward``."""

    def forward(*arguments: Any, **named: Any) -> Any:
        return module(*arguments, **named)

    forward.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    forward.__qualname__ = f"{type(module).__qualname__}.forward"
    return forward


@context
def _aside(loop: State, sanity: bool) -> Iterator[None]:
    """Set aside the running metrics of the enclosing epoch or pass; for a sanity check, all metrics."""
    metrics, outer = loop.metrics, loop.evaluation
    running: dict[str, Running] = metrics.epoch
    kept = (dict(metrics.latest), dict(metrics.updates), set(metrics.on_bar))
    metrics.epoch = {}
    try:
        yield
    finally:
        metrics.epoch = running
        if sanity:
            metrics.latest, metrics.updates, metrics.on_bar = kept
        loop.evaluation = outer


@context
def _modes_kept(module: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@context
def _random_kept() -> Iterator[None]:
    put_back = keep_random()
    try:
        yield
    finally:
        put_back()
