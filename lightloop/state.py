"""The state of a run: what it works on, and its counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightloop.control import Control
from lightloop.gradients import Weight
from lightloop.hookspecs import Hooks
from lightloop.host.dispatch import Relay
from lightloop.host.plugin import Plugin
from lightloop.inputs.data import check_loader, check_one, size_of
from lightloop.inputs.optimizers import Schedule
from lightloop.inputs.samples import batch_size, checked, describe, is_collated
from lightloop.inputs.signatures import Argument, Step
from lightloop.metrics import Metrics, Number, Reduce, Running
from lightloop.side_by_side import SideBySide, in_order_of
from lightloop.stash import Stash
from lightloop.warning import warn
from lightloop.window import Window
from lightloop.world import World

if TYPE_CHECKING:
    from lightloop.evaluation import Evaluation

Status = Literal["running", "finished", "stopped", "interrupted", "failed"]
Stage = Literal["fit", "validate", "test", "predict"]


class HookRelay(Hooks, Relay):
    """The relay with the hooks of the loop as methods, for type checkers."""


class State(Control):
    """The shared state of a run; all its attributes are set here, except the requests of :class:`Control`.

    Counters: ``epoch`` and ``batch_idx`` (within the epoch) name the current ones, and between two batches the next;
    ``total_batches``, ``total_pieces``, ``optimizer_steps`` (per optimizer) and ``skipped_steps`` count what is done;
    ``global_step`` counts the windows whose step was applied and rises just before ``after_step``.
    """

    def __init__(self, module: nn.Module, hook: HookRelay, plugins: Sequence[Plugin], stage: Stage = "fit") -> None:
        super().__init__()
        self.module = module
        self.module_name = type(module).__name__
        """The name of the user's class; a strategy may replace the class itself."""
        self.hook = hook
        self.plugins = plugins
        self.trainer: Any = None
        """The Trainer of this run, for attributes that users' code expects on it."""
        self.stage: Stage = stage
        self.status: Status = "running"
        self.device = torch.device("cpu")
        self.world = World()
        self.stash = Stash()
        self.metrics = Metrics()
        self.epoch_metrics: dict[str, float] = {}
        """The metrics of the epoch, over all ranks; empty until its last batch is done."""
        self.optimizers: list[Optimizer] = []
        self.schedules: list[Schedule] = []
        self.frequencies: list[int] = []
        self.train_source: Callable[[], Any] | None = None
        self.train_loader: Iterable[Any] = ()
        self.eval_sources: dict[str, Callable[[], Any]] = {}
        self.eval_loaders: dict[str, dict[str | None, Iterable[Any]]] = {}
        """The loaders that a stage has been given; it asks its source for new ones if they are taken out."""
        self.wrong_lengths: set[str] = set()
        """The data whose ``len()`` has been said to be wrong, which is said once."""
        self.evaluation: Evaluation | None = None

        self.epoch: int = 0
        self.batch_idx: int = 0
        self.total_batches: int = 0
        self.total_pieces: int = 0
        self.global_step: int = 0
        self.skipped_steps: int = 0
        self.optimizer_steps: list[int] = []
        self.windows: list[Window] = []

        self.batch: Any = None
        self.is_last_batch = False
        self.pieces: Sequence[Any] = ()
        self.piece: Any = None
        """What goes forward: the whole batch until it is split, None between two batches."""
        self.piece_idx = 0
        self.optimizer_idx: int | None = None
        self.optimizer: Optimizer = SideBySide(())
        self.window = Window(SideBySide(()), ())
        self.held = False
        self.output: Any = None
        self.loss: Tensor | None = None
        self.weight: Weight | None = None
        self.share: Tensor | None = None
        self.gradients: list[Tensor] = []
        self.stepped = False
        self.epoch_finished = False
        self.stopping = False
        """Whether training ends at this batch boundary, by request."""
        self.replaying = False
        """Whether the window is gone through again, by an optimizer's closure or by :func:`lightloop.toolkit.replay`."""
        self.again: bool | None = None
        """In an evaluation that can be repeated, whether it has to be: set by a phase whose gradient cannot be used."""
        self.no_replay: str | None = None
        """Why windows cannot be gone through again in this run."""

        self.step_arguments: dict[str, Argument] = {
            "batch": "loop.piece",
            "batch_idx": "loop.batch_idx",
            "optimizer_idx": "loop.optimizer_idx",
            "epoch": "loop.epoch",
            "global_step": "loop.global_step",
            "loop": "loop",
        }
        self.step_order = ["batch", "batch_idx", "optimizer_idx"]
        """What training_step is given by position; ``optimizer_idx`` only where there are several optimizers."""
        self.absent_arguments = {"dataloader_idx": "it is an argument of the steps of evaluation"}
        """Names of arguments that ``training_step`` has in other runs, each with why not in this one."""
        self.evaluation_arguments: dict[str, Argument] = {}
        """What plugins offer to the steps of evaluation by name, beside ``lightloop.evaluation.ARGUMENTS``."""
        self.training_step: Step | None = None
        self.user_step: Step | None = None
        """The module's training_step, where a strategy has put a function of its own in the place of ``training_step``."""
        self._counted: tuple[Any, int | None] | None = None
        self._uncounted: set[Stage] = set()
        """The stages in which it has been said that samples cannot be counted."""
        self.by_hand = False
        """Whether training_step goes backward and steps by itself."""
        self._edits_to_check = 0
        """Of how many windows to come it is looked at whether gradients were edited in place."""
        self._idle_told = self._unused_told = False
        self._norms: dict[float, Tensor] = {}
        self._shares: dict[Any, Tensor] = {}
        self._replays: list[bool] = []

    def opt_out(self, plugin: Plugin, *hooks: str) -> None:
        """Take ``plugin`` out of this run because it has nothing to do, or only out of the given ``hooks``.

        For a plugin that is out of the run, only the clean-up hooks are still called.
        """
        self.hook.leave(plugin, *hooks)

    # ----------------------------------------------------------------------------------------------------- answers

    def select(self, index: int) -> None:
        """Make window ``index`` the current one: ``loop.optimizer_idx``, ``loop.window`` and ``loop.optimizer``.

        Each optimizer has a window, of its own index; where one loss is for all of them, there is one window, 0.
        """
        try:
            self.window = self.windows[index]
        except IndexError:
            index = -1
        if index < 0:
            found = f"the optimizers are counted from 0 to {len(self.windows) - 1}, and another one was selected"
            raise self.hook.wrong("select_optimizers", IndexError, found)
        self.optimizer_idx, self.optimizer = index, self.window.optimizer

    def where(self) -> str:
        """Return the position of the run for messages: epoch, batch and, if there are several ranks, rank."""
        evaluation = self.evaluation
        where = f"batch {self.batch_idx}" if evaluation is None else f"{evaluation.stage} batch {evaluation.batch_idx}"
        rank = f", rank {self.world.rank}" if self.world.size > 1 else ""
        return f"epoch {self.epoch}, {where}{rank}"

    @property
    def num_batches(self) -> int | None:
        """The number of batches in an epoch, after limits; None if the loader has no length."""
        return size_of(self.train_loader)

    @property
    def total_steps(self) -> int | None:
        """The number of optimizer steps in the whole fit, if nothing stops it early; None if unknown.

        Steps are counted as ``global_step`` is, so accumulation, limits and bounds are in it. Schedules need the number,
        and may ask for it in ``configure_optimizers``.
        """
        steps = self.hook.total_steps(loop=self)  # type: ignore[arg-type]
        return None if steps is None or steps == math.inf else int(steps)

    def grad_norm(self, norm_type: float = 2.0) -> Tensor:
        """Return the norm of the gradients as it was when first computed at this step: a scalar on their device.

        It is computed once per step and kind of norm, so clipping does not change it.
        """
        if norm_type not in self._norms:
            norm = self.hook.grad_norm(loop=self, norm_type=norm_type)  # type: ignore[arg-type]
            assert norm is not None
            self._norms[norm_type] = norm
        return self._norms[norm_type]

    def find_gradients(self) -> list[Tensor]:
        """Return the current gradients of the selected optimizer's parameters."""
        groups = self.optimizer.param_groups
        if self.window.members[1:]:  # in the order in which one would clip them by hand, so that norms are its bits
            groups = [{"params": in_order_of(self.module, groups)}]
        return [grad for group in groups for parameter in group["params"] if (grad := parameter.grad) is not None]

    # ------------------------------------------------------------------------------------------------------ logging

    def log(
        self,
        name: str,
        value: Number,
        *,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        prog_bar: bool = False,
        reduce: Reduce = "mean",
        weight: Number | None = None,
        copy: bool = True,
    ) -> None:
        """Log a metric: a number, or a one-element tensor, which stays on its device until its value is needed.

        Args:
            name: the metric's name.
            value: its value for this batch.
            on_step: keep it for the step's row; the default in training.
            on_epoch: keep it for the mean over the epoch, or over the pass in evaluation, which has nothing else.
            prog_bar: show it on progress bars.
            reduce: how the batches of a window, an epoch or a pass become one number.
            weight: what the batch counts for in a mean; over an epoch, the default is its number of samples, as
                :meth:`samples_in` says.
            copy: keep a copy, since ``loss += penalty``, or a step that moves a logged parameter, would change what was
                logged. Without one, a scalar that is in no graph and that nobody changes costs a third.
        """
        if self.replaying:
            return
        evaluating = self.evaluation
        if evaluating is not None:
            if on_step:
                raise ValueError(f"metric {name!r}: on_step=True has no meaning in evaluation, which takes no steps")
            name = evaluating.metric_name(name)
            on_step, on_epoch = False, True
        elif on_step is None:
            on_step = not on_epoch
        if weight is None:
            weight = self.weight_of_batch(name) if on_epoch and reduce == "mean" else 1
        step, epoch = on_step, bool(on_epoch)
        self.metrics.log(name, value, step=step, epoch=epoch, bar=prog_bar, reduce=reduce, weight=weight, copy=copy)

    def fold_metrics(self) -> dict[str, float]:
        """Compute the epoch's metrics over all ranks and publish them to monitors; all ranks must call it.

        The loop does so after the last batch, before ``after_epoch``; a plugin that logs for the epoch later calls it again.
        Returns the metrics that are new; :attr:`epoch_metrics` has them all.
        """
        means = self.metrics.take_epoch(self.world)
        self.epoch_metrics |= means
        return means

    def samples_in(self, batch: Any) -> int | None:
        """Return the number of samples in ``batch``; None if unknown.

        A module that defines ``batch_size(batch)`` is asked; for others see :func:`lightloop.toolkit.batch_size`.
        """
        if self._counted is None or self._counted[0] is not batch:
            say = getattr(self.module, "batch_size", None)
            if callable(say):
                size = checked(say(batch), self.module_name)
            else:
                evaluation = self.evaluation
                loader = self.train_loader if evaluation is None else evaluation.loaders[evaluation.loader_name]
                size = batch_size(batch, collated=is_collated(loader))
            self._counted = batch, size
        return self._counted[1]

    def set_samples(self, batch: Any, size: int) -> None:
        """Set the number of samples of ``batch``, which is about to become the piece, to ``size``."""
        self._counted = batch, size

    def weight_of_batch(self, name: str) -> int | None:
        """Return the weight of the current batch in the epoch mean of metric ``name``: its samples; 1 outside a batch.

        None, with a warning once in each stage, where its samples cannot be counted.
        """
        evaluating = self.evaluation
        batch = self.piece if evaluating is None else evaluating.batch
        if batch is None:
            return 1
        size, stage = self.samples_in(batch), self.stage if evaluating is None else evaluating.stage
        if size is None and stage not in self._uncounted:
            self._uncounted.add(stage)
            warn(
                f"the mean of metric {name!r} over the {'epoch' if evaluating is None else 'pass'} counts each batch as one, "
                f"as it cannot be known how many samples are in {describe(batch)} (at {self.where()}): give "
                f"log(..., weight=samples), or define {self.module_name}.batch_size(batch)"
            )
        return size

    def write(self, metrics: Mapping[str, float]) -> None:
        """Pass ``metrics`` to the loggers at the current ``global_step``; only the main rank writes."""
        if metrics and self.world.is_main:
            self.hook.log_metrics(loop=self, metrics=metrics, step=self.global_step)  # type: ignore[arg-type]

    # --------------------------------------------------------------------------------------------------------- data

    def reload_train_data(self) -> None:
        """Get the training loader from its source again: a new one if the source is a function that creates it."""
        assert self.train_source is not None
        loader = self.train_source()
        check_loader(loader, "the training data")
        check_one(loader)
        if size_of(loader) == 0:
            raise ValueError("the training data has no batches; nothing can be learnt from it")
        self.train_loader = self.prepared(loader, "fit")

    def prepared(self, loader: Iterable[Any], stage: Stage) -> Iterable[Any]:
        """Return ``loader`` as the plugins prepare it for ``stage``."""
        prepared = self.hook.prepare_loader(loop=self, loader=loader, stage=stage)  # type: ignore[arg-type]
        assert prepared is not None
        return prepared

    def _say_if_idle(self, batches: int, tried: int) -> None:
        """Warn once that none of an epoch's ``batches`` had a loss; ``tried`` is how many windows had closed when it began."""
        if not batches or self.global_step + self.skipped_steps != tried or self.stop_reason or self._idle_told:
            return
        if self.by_hand or any(window.contributions for window in self.windows):
            return
        self._idle_told = True
        if self.world.is_main:
            warn(
                f"nothing was trained in epoch {self.epoch}: none of its {batches} batches had a loss. Either "
                f"{self.module_name}.training_step returned None for each, or they were passed over; it must return the loss"
            )

    def _say_if_unused(self) -> None:
        """Warn once that training_step returned a loss, and that there is no optimizer to use it."""
        loss = self.output.get("loss") if isinstance(self.output, Mapping) else self.output
        if isinstance(loss, Tensor) and loss.requires_grad and not self.by_hand and not self._unused_told:
            self._unused_told = True
            warn(
                f"{self.module_name} has no optimizer: the loss that training_step returns is not used, and nothing is trained. "
                "Return one from configure_optimizers"
            )

    def _stop_if_empty(self, batches: int) -> None:
        if batches == 0 and not self.stop_reason:
            again = (
                " again; a generator gives its batches once, a list or a DataLoader as often as asked"
                if self.total_batches
                else ""
            )
            warn(f"the training data gave no batch{again}")
            self.stop("the training data gave no batch")


__all__ = ["Running", "Stage", "State", "Status"]
