"""All hooks, in the order in which a run calls them.

A bare verb is an *operation*: the first plugin that returns something other than None answers it, and the loop's own
default answers last. ``before_x`` and ``after_x`` notify and return nothing, as do the few verbs that do work
without an answer (``setup``, ``reduce_gradients``, ``log_metrics``). ``on_x`` is for unusual events. Arguments are
always passed by name; a plugin names those that it wants. To wrap a hook, implement it with
``@hookimpl(wrapper=True)``: a generator that yields once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy
from torch import Tensor

from lightloop.host.answers import Meant
from lightloop.host.class_checks import HOOKS

if TYPE_CHECKING:
    from lightloop.evaluation import Evaluation
    from lightloop.inputs.optimizers import Setup
    from lightloop.loop import Loop

hookspec = pluggy.HookspecMarker("lightloop")
hookimpl = pluggy.HookimplMarker("lightloop")


class Hooks:
    """The contract between the loop and its plugins."""

    # ------------------------------------------------------------------------------------------------ a run begins

    @hookspec
    def setup(self, loop: Loop) -> None:
        """Prepare for a run of any stage.

        When: first of all, for fit, validate, test and predict; ``loop.module`` and ``loop.stage`` are known, loaders
            and optimizers are not.
        May change: the module's device, dtype and wrapping; ``loop.world``; ``loop.step_arguments`` and
            ``loop.evaluation_arguments``.
        Order: accelerator, strategy, then plugins that need the module on its device.
        """

    @hookspec(firstresult=True)
    def prepare_loader(self, loop: Loop, loader: Iterable[Any], stage: str) -> Iterable[Any] | None:
        """Return the loader to read for ``stage``: "fit", "validate", "test" or "predict".

        When: once for each loader, before it is first read, and again when it is reloaded.
        Default: ``loader`` as the user gave it.
        Order: wrap it (``wrapper=True``) to limit, shard or reorder the loader that other plugins return.
        """

    @hookspec(firstresult=True)
    def configure_optimizers(self, loop: Loop) -> Setup | None:
        """Create the optimizers and their learning-rate schedulers.

        When: fit only, after setup, when the module is where it will train.
        Default: the module's ``configure_optimizers``, in any of its documented forms.
        """

    @hookspec
    def before_fit(self, loop: Loop) -> None:
        """Loaders and optimizers are built; training is about to begin.

        When: once per fit, after loaders and optimizers exist.
        May change: anything that must be restored or checked before the first batch: counters, weights, state.
        """

    @hookspec(firstresult=True)
    def epochs_remain(self, loop: Loop) -> bool | None:
        """Return whether to train another epoch.

        When: before each epoch.
        Default: train one epoch.
        """

    @Meant("answer >= 0", ", at least 0")
    @hookspec(firstresult=True)
    def epoch_batches(self, loop: Loop, epoch: int) -> float | None:
        """Return the number of batches in epoch ``epoch`` if it is not cut short; infinity if unknown.

        When: when ``loop.total_steps`` is asked for, and for the current epoch as its windows are planned.
        Default: the length of the training loader as it is now.
        Order: answer where epochs differ in length, as in a curriculum; wrap it to bound what others answer.
        """

    @Meant("answer >= 0", ", at least 0")
    @hookspec(firstresult=True)
    def epoch_steps(self, loop: Loop, epoch: int) -> float | None:
        """Return the number of optimizer steps in epoch ``epoch`` if it is not cut short; infinity if unknown.

        When: when ``loop.total_steps`` is asked for.
        Default: one for each of ``epoch_batches``.
        Order: a plugin that groups batches answers with the windows that ``epoch_batches`` come to.
        """

    @Meant("answer >= 0", ", at least 0")
    @hookspec(firstresult=True)
    def total_steps(self, loop: Loop) -> float | None:
        """Return the number of optimizer steps in the whole fit if nothing stops it early; infinity if unknown.

        When: when ``loop.total_steps`` is read.
        Default: the steps of one epoch.
        """

    @hookspec
    def before_epoch(self, loop: Loop) -> None:
        """An epoch begins; ``loop.batch_idx`` is above 0 if a resumed run continues in the middle of it.

        When: before the first batch of the epoch is fetched.
        May change: samplers, the loader (``loop.reload_train_data()``), modes and requires_grad flags of the module.
        """

    @hookspec(firstresult=True)
    def read_batches(self, loop: Loop) -> Iterable[tuple[Any, bool]] | None:
        """Return an iterable of ``(batch, is_last)`` pairs, starting at batch ``loop.batch_idx`` of the epoch.

        When: once per epoch, after before_epoch.
        Default: read ``loop.train_loader`` up to its length, skipping batches that a resumed epoch has trained on.
            Without a length, no batch is marked as the last: nothing is read ahead of the batch in training.
        """

    # --------------------------------------------------------------------------------------------------- one batch

    @hookspec(firstresult=True)
    def move_batch(self, loop: Loop, batch: Any) -> Any:
        """Return ``batch`` on the module's device.

        When: once per batch, in every stage.
        Default: the batch unchanged.
        """

    @hookspec
    def before_batch(self, loop: Loop) -> None:
        """``loop.batch`` is about to be trained on.

        When: once per training batch, after it was moved; a batch that is None is skipped.
        May change: ``loop.batch``; ``loop.skip_batch(reason)``, or setting it to None, skips it.
        """

    @hookspec(firstresult=True)
    def split_batch(self, loop: Loop) -> Sequence[Any] | None:
        """Split the batch into pieces that go through forward and backward one after another.

        When: once per batch.
        Default: one piece, the batch.
        """

    @hookspec(firstresult=True)
    def select_optimizers(self, loop: Loop) -> Sequence[int | None] | None:
        """Return the indices of the optimizers to train on this piece; None in place of an index runs forward only.

        When: once per piece.
        Default: every optimizer, in the order in which the user gave them.
        """

    @hookspec(firstresult=True)
    def hold_step(self, loop: Loop) -> bool | None:
        """Return True to keep the window open: this piece adds to the gradient, and no step follows.

        When: before forward, so that plugins that reduce gradients know it.
        Default: False.
        Order: the first True counts; return None, not False, if you do not need to hold.
        """

    @Meant("answer >= 1", ", at least 1")
    @hookspec(firstresult=True)
    def plan_window(self, loop: Loop) -> int | None:
        """Return how many batches the window that begins with this piece is expected to hold.

        When: where the window stays open, after hold_step and until a piece has added a gradient; ``loop.window.batches``
            have begun in it.
        Default: 1.
        Order: each gradient is divided by the answer as it is added. Where the window comes to hold another number, the loop
            corrects the mean when it closes: a wrong answer costs a multiplication and changes no result.
        """

    @Meant(none=True)
    @hookspec(firstresult=True)
    def forward(self, loop: Loop) -> Any:
        """Run the module on ``loop.piece`` and return what it returns.

        When: once per piece and optimizer, and again each time that an optimizer's closure is called.
        Default: the module's ``training_step``.
        Order: wrap it for autocast, no_sync and the like.
        """

    @hookspec
    def after_forward(self, loop: Loop) -> None:
        """Forward is done; ``loop.output``, ``loop.loss`` and ``loop.weight`` are set.

        When: after each forward of a piece, even if the loss is None.
        May change: ``loop.loss`` (None leaves the piece out of the window) and ``loop.weight``.
        """

    @hookspec
    def before_backward(self, loop: Loop) -> None:
        """Backward is about to run on ``loop.loss``.

        When: once per piece and optimizer that has a loss.
        May change: ``loop.loss``, ``loop.share``.
        """

    @hookspec(firstresult=True)
    def backward(self, loop: Loop) -> bool | None:
        """Add the gradient of ``loop.loss``, times ``loop.share``, to the parameters; return False if nothing was added.

        When: once per piece and optimizer, and again each time that an optimizer's closure is called.
        Default: ``loop.loss.backward(loop.share)``.
        Order: a precision plugin scales the loss, and unscales in unscale_gradients; a strategy may wrap.
        """

    @hookspec
    def after_backward(self, loop: Loop) -> None:
        """Backward is done; the gradient of this piece has been added to that of its window.

        When: once per piece and optimizer that went backward.
        May change: nothing that an open window needs.
        """

    @hookspec
    def reduce_gradients(self, loop: Loop) -> None:
        """A window closes: average the gradients over all processes.

        When: once per window, before anything else is done to its gradient, also where its last backward was held; and
            again each time that an optimizer's closure is called.
        May change: ``loop.gradients`` in place, or the ``grad`` of the optimizer's parameters; they are looked up anew afterwards.
        Order: for strategies alone.
        """

    @hookspec
    def unscale_gradients(self, loop: Loop) -> None:
        """Divide the gradients by the factor with which ``backward`` scaled the loss.

        When: as reduce_gradients, and after it. Then the loop divides by the weights that were in the window.
        May change: as in reduce_gradients; ``loop.skip_step(reason)`` keeps the step from being taken, and where
            ``loop.again`` is not None, True in it has the gradient evaluated once more, for a step that has begun.
        Order: for precision alone.
        """

    @hookspec
    def before_step(self, loop: Loop) -> None:
        """A step is about to be taken; ``loop.gradients`` are final: reduced over processes, unscaled, weighted.

        When: once per window, after unscale_gradients, and again each time that an optimizer's closure is called (but by a
            line search). A plugin needs no declaration to see the whole gradient.
        May change: the tensors in ``loop.gradients``, in place; ``loop.skip_step(reason)`` keeps the step from being taken.
            Where a parameter's ``grad`` has to be another tensor, end with ``loop.gradients = loop.find_gradients()``.
        Order: measure, check, clip.
        """

    @Meant("answer.ndim == 0", " without dimensions")
    @hookspec(firstresult=True)
    def grad_norm(self, loop: Loop, norm_type: float) -> Tensor | None:
        """Return the ``norm_type``-norm of the stepping optimizer's gradients, a scalar tensor on their device.

        When: the first time in a window that ``loop.grad_norm(norm_type)`` is asked for.
        Default: the norm over the gradients of this process.
        Order: a strategy that shards parameters answers for all ranks.
        """

    @hookspec(firstresult=True)
    def step(self, loop: Loop) -> bool | None:
        """Update the stepping optimizer's parameters; return True if the update was applied.

        When: once per window, after before_step.
        Default: ``loop.optimizer.step()``, with a closure that replays the window where the optimizer needs one.
        Order: wrap it to see what the step changes.
        """

    @hookspec
    def after_step(self, loop: Loop) -> None:
        """A step was applied; ``loop.global_step`` has been incremented.

        When: once per window whose step was applied.
        May change: learning rates, averaged weights; the gradients can still be read.
        """

    @hookspec
    def on_step_skipped(self, loop: Loop) -> None:
        """The window closed without a step; ``loop.skip_step_reason`` says why, if a plugin asked for it.

        When: instead of after_step.
        May change: whatever the plugin that skipped the step has to restore.
        """

    @hookspec(firstresult=True)
    def zero_grad(self, loop: Loop) -> bool | None:
        """Clear the gradients of the stepping optimizer.

        When: after every step, applied or skipped, and once per optimizer before the first batch.
        Default: set each parameter's ``grad`` to None.
        """

    @hookspec
    def after_batch(self, loop: Loop) -> None:
        """A batch is done; ``loop.stepped`` says whether it applied a step.

        When: once per training batch, skipped ones included; ``loop.batch_idx`` is still its index.
        May change: requests; evaluation hangs here.
        """

    @hookspec
    def between_batches(self, loop: Loop) -> None:
        """A safe point to save: the state is complete, counters name the next batch, and nothing is in flight.

        When: after each batch but the last of an epoch, also where the epoch is broken off there (``loop.stopping``), before
            its open windows are closed; after after_epoch, with the counters of the next epoch. Data without a length shows
            that it has ended only when it is asked again, so that its last batch is followed by both.
        May change: requests.
        """

    @hookspec(firstresult=True)
    def may_stop(self, loop: Loop) -> bool | None:
        """Return whether a requested stop may happen now; False delays it until the hook is called again.

        When: at each batch boundary while there is a request to stop.
        Default: True.
        """

    @hookspec
    def after_epoch(self, loop: Loop) -> None:
        """An epoch is over and its windows are closed; ``loop.epoch_finished`` says whether it ran to its end.

        When: once per epoch; ``loop.epoch`` still names it.
        May change: requests; evaluation hangs here.
        """

    # -------------------------------------------------------------------------------------------------- evaluation

    @hookspec
    def before_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        """A pass over evaluation data begins; ``evaluation`` (also ``loop.evaluation``) holds its state.

        When: before the first batch, modes set to eval and gradients off.
        May change: the weights to evaluate, if after_evaluation restores them.
        """

    @hookspec
    def before_evaluation_batch(self, loop: Loop, evaluation: Evaluation) -> None:
        """``evaluation.batch`` is about to be evaluated.

        When: once per evaluation batch, after it was moved.
        May change: ``evaluation.batch``; a batch that is None is skipped.
        """

    @Meant(none=True)
    @hookspec(firstresult=True)
    def evaluate_batch(self, loop: Loop, evaluation: Evaluation) -> Any:
        """Run the module on ``evaluation.batch`` and return what it returns.

        When: once per evaluation batch that is not None.
        Default: the module's ``validation_step``, ``test_step`` or ``predict_step``, depending on the stage.
        Order: wrap it for autocast and the like.
        """

    @hookspec
    def after_evaluation_batch(self, loop: Loop, evaluation: Evaluation) -> None:
        """An evaluation batch is done; ``evaluation.output`` is the step's return value, or None if the batch was None.

        When: once per evaluation batch.
        May change: nothing.
        """

    @hookspec
    def after_evaluation_batches(self, loop: Loop, evaluation: Evaluation) -> None:
        """All batches of all loaders have been evaluated; metrics logged now still belong to the pass.

        When: once per pass that did not end with an error, before its numbers are computed.
        May change: what is logged, by ``loop.log``.
        """

    @hookspec
    def after_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        """The pass is over; ``evaluation.metrics`` holds its results.

        When: once per pass whose before_evaluation began; also when it ended with an error, then without numbers.
        May change: what before_evaluation changed, back.
        """

    # ------------------------------------------------------------------------------------------------ what else is told

    @hookspec
    def log_metrics(self, loop: Loop, metrics: Mapping[str, float], step: int) -> None:
        """Write ``metrics`` to a logger.

        When: whenever ``loop.write(metrics)`` is called; on the main rank only.
        May change: nothing.
        """

    @hookspec
    def on_interrupt(self, loop: Loop) -> None:
        """The run was interrupted by the user or the system; ``loop.stop_reason`` says how.

        When: once, at the safe point where the run ends.
        May change: nothing; save here what must not be lost.
        """

    @hookspec
    def on_error(self, loop: Loop, error: BaseException) -> None:
        """The run failed with ``error``, which is raised to the user whatever this hook does.

        When: on the way out, for each plugin whose setup began, in reverse order.
        May change: nothing; an error in here is noted on ``error``.
        """

    @hookspec
    def after_fit(self, loop: Loop) -> None:
        """Training is over, with or without an error; ``loop.status`` says how it ended.

        When: once per fit, in reverse order, after on_error and before teardown.
        May change: nothing that training needs.
        """

    @hookspec
    def teardown(self, loop: Loop) -> None:
        """Undo what setup changed.

        When: last of all, for each plugin whose setup began, in reverse order.
        May change: everything that the plugin itself owns.
        """


HOOKS.update(name for name, spec in vars(Hooks).items() if hasattr(spec, "lightloop_spec"))
