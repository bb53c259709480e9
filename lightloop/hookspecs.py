"""Every hook, in the order in which a run meets them.

A bare verb is an *operation*: the first plugin that returns something other than None has answered, and the loop's own
plain answer is asked last. ``before_x`` and ``after_x`` tell and return nothing, and so do the few verbs that have work done
without an answer (``setup``, ``reduce_gradients``, ``log_metrics``). ``on_x`` is the unusual. Arguments are
always passed by name; a plugin names those that it wants. To surround a hook, implement it with
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
        """Get ready for a run of any stage.

        When: first of all, for fit, validate, test and predict; ``loop.module`` and ``loop.stage`` are known, loaders
            and optimizers are not.
        May change: the module's device, dtype and wrapping; ``loop.world``; ``loop.step_arguments`` and
            ``loop.evaluation_arguments``.
        Order: accelerator, strategy, then whoever needs a placed module.
        """

    @hookspec(firstresult=True)
    def prepare_loader(self, loop: Loop, loader: Iterable[Any], stage: str) -> Iterable[Any] | None:
        """Return the loader that is really read for ``stage``: "fit", "validate", "test" or "predict".

        When: once for each loader, before it is first read, and again when it is asked for anew.
        Default: ``loader`` as the user gave it.
        Order: wrap it (``wrapper=True``) to limit, shard or reorder what others made of it.
        """

    @hookspec(firstresult=True)
    def configure_optimizers(self, loop: Loop) -> Setup | None:
        """Make the optimizers and the schedules of their learning rates.

        When: fit only, after setup, when the module is where it will train.
        Default: the module's ``configure_optimizers``, in any of its documented forms.
        """

    @hookspec
    def before_fit(self, loop: Loop) -> None:
        """Everything is built; training is about to begin.

        When: once per fit, after loaders and optimizers exist.
        May change: anything that must be restored or checked before the first batch: counters, weights, state.
        """

    @hookspec(firstresult=True)
    def epochs_remain(self, loop: Loop) -> bool | None:
        """Whether another epoch is to be trained.

        When: before each epoch.
        Default: one epoch in all.
        """

    @Meant("answer >= 0", ", at least 0")
    @hookspec(firstresult=True)
    def epoch_batches(self, loop: Loop, epoch: int) -> float | None:
        """How many batches epoch number ``epoch`` will have, if it runs to its end; infinity where that cannot be known.

        When: when ``loop.total_steps`` is asked for, and for the current epoch as its windows are planned.
        Default: the length of the training loader as it is now.
        Order: answer where epochs differ in length, as in a curriculum; wrap it to bound what others answer.
        """

    @Meant("answer >= 0", ", at least 0")
    @hookspec(firstresult=True)
    def epoch_steps(self, loop: Loop, epoch: int) -> float | None:
        """How many steps epoch number ``epoch`` will have, if it runs to its end; infinity where that cannot be known.

        When: when ``loop.total_steps`` is asked for.
        Default: one for each of ``epoch_batches``.
        Order: a plugin that groups batches answers with the windows that ``epoch_batches`` come to.
        """

    @Meant("answer >= 0", ", at least 0")
    @hookspec(firstresult=True)
    def total_steps(self, loop: Loop) -> float | None:
        """How many steps the whole fit will have, if nobody stops it; infinity where that cannot be known.

        When: when somebody asks for ``loop.total_steps``.
        Default: those of one epoch.
        """

    @hookspec
    def before_epoch(self, loop: Loop) -> None:
        """An epoch begins; ``loop.batch_idx`` is above 0 where a resumed run goes on inside one.

        When: before the first batch of the epoch is fetched.
        May change: samplers, the loader (``loop.reload_train_data()``), modes and requires_grad flags of the module.
        """

    @hookspec(firstresult=True)
    def read_batches(self, loop: Loop) -> Iterable[tuple[Any, bool]] | None:
        """Give the epoch's batches from ``loop.batch_idx`` on, each with whether it is known to be the last one.

        When: once per epoch, after before_epoch.
        Default: read ``loop.train_loader`` up to its length, passing over those that a resumed epoch had already trained on.
            Where it has no length, none is said to be the last: nothing is read ahead of the batch that is trained on.
        """

    # --------------------------------------------------------------------------------------------------- one batch

    @hookspec(firstresult=True)
    def move_batch(self, loop: Loop, batch: Any) -> Any:
        """Return ``batch`` where the module can use it.

        When: once per batch, of every stage.
        Default: the batch as it came.
        """

    @hookspec
    def before_batch(self, loop: Loop) -> None:
        """``loop.batch`` is about to be trained on.

        When: once per training batch, after it was moved; one that is None is passed over.
        May change: ``loop.batch``; ``loop.skip_batch(reason)``, or None in its place, passes it over.
        """

    @hookspec(firstresult=True)
    def split_batch(self, loop: Loop) -> Sequence[Any] | None:
        """Cut the batch into the pieces that go forward one after another.

        When: once per batch.
        Default: one piece, the batch.
        """

    @hookspec(firstresult=True)
    def select_optimizers(self, loop: Loop) -> Sequence[int | None] | None:
        """Return the indices of the optimizers that this piece is for; None in place of an index: forward alone.

        When: once per piece.
        Default: every optimizer, in the order in which the user gave them.
        """

    @hookspec(firstresult=True)
    def hold_step(self, loop: Loop) -> bool | None:
        """Answer True to keep the window open: this piece adds to the gradient and no step follows.

        When: before forward, so that whoever reduces gradients can know.
        Default: False.
        Order: the first True counts; answer None, not False, where you have no need of holding.
        """

    @Meant("answer >= 1", ", at least 1")
    @hookspec(firstresult=True)
    def plan_window(self, loop: Loop) -> int | None:
        """How many batches the window that this piece begins will hold, as far as that is known.

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
        """``loop.output``, ``loop.loss`` and ``loop.weight`` are known.

        When: after each forward of a piece, also when the loss is None.
        May change: ``loop.loss`` (None leaves the piece out of the window) and ``loop.weight``.
        """

    @hookspec
    def before_backward(self, loop: Loop) -> None:
        """The loss is about to be differentiated.

        When: once per piece and optimizer that has a loss.
        May change: ``loop.loss``, ``loop.seed``.
        """

    @hookspec(firstresult=True)
    def backward(self, loop: Loop) -> bool | None:
        """Add the gradient of ``loop.loss``, times ``loop.seed``, to the parameters; False if nothing was added.

        When: once per piece and optimizer, and again each time that an optimizer's closure is called.
        Default: ``loop.loss.backward(loop.seed)``.
        Order: a precision plugin scales the loss, and unscales in unscale_gradients; a strategy may wrap.
        """

    @hookspec
    def after_backward(self, loop: Loop) -> None:
        """The gradient of this piece has been added; it may be part of a window's.

        When: once per piece and optimizer that went backward.
        May change: nothing that a held window needs.
        """

    @hookspec
    def reduce_gradients(self, loop: Loop) -> None:
        """A window closes: bring the gradients of all processes together, as their mean.

        When: once per window, before anything else is done to its gradient, also where its last backward was held; and
            again each time that an optimizer's closure is called.
        May change: ``loop.gradients`` in place, or the ``grad`` of the optimizer's parameters; they are looked up anew afterwards.
        Order: for strategies alone.
        """

    @hookspec
    def unscale_gradients(self, loop: Loop) -> None:
        """Take out of the gradient by what ``backward`` has multiplied the loss.

        When: as reduce_gradients, and after it. Then the loop divides by the weights that were in the window.
        May change: as in reduce_gradients; ``loop.skip_step(reason)`` keeps the step from being taken, and where
            ``loop.again`` is not None, True in it has the gradient evaluated once more, for a step that has begun.
        Order: for precision alone.
        """

    @hookspec
    def before_step(self, loop: Loop) -> None:
        """``loop.gradients`` is the gradient of the whole window: reduced over all processes, unscaled, weighted.

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
        """Update the stepping optimizer's parameters; True if the update was applied.

        When: once per window, after before_step.
        Default: ``loop.optimizer.step()``, with a closure that replays the window where the optimizer needs one.
        Order: wrap it to see what the step changes.
        """

    @hookspec
    def after_step(self, loop: Loop) -> None:
        """A step was applied; ``loop.global_step`` has risen.

        When: once per window whose step was applied.
        May change: learning rates, averaged weights; the gradients are still there to be read.
        """

    @hookspec
    def on_step_skipped(self, loop: Loop) -> None:
        """The window closed without a step; ``loop.skip_step_reason`` says why, where somebody asked for it.

        When: in place of after_step.
        May change: whatever the skipper has to set right.
        """

    @hookspec(firstresult=True)
    def zero_grad(self, loop: Loop) -> bool | None:
        """Drop the gradients of the stepping optimizer.

        When: after every step, applied or skipped, and once per optimizer before the first batch.
        Default: set each parameter's ``grad`` to None.
        """

    @hookspec
    def after_batch(self, loop: Loop) -> None:
        """A batch is done; ``loop.stepped`` says whether a step was applied in it.

        When: once per training batch, also one that was passed over; ``loop.batch_idx`` still names it.
        May change: requests; evaluation hangs here.
        """

    @hookspec
    def between_batches(self, loop: Loop) -> None:
        """All that a later run needs to go on from here is in the state: counters name the next batch, nothing is in flight.

        When: after each batch but the last of an epoch, also where the epoch is broken off there (``loop.stopping``), before
            its open windows are closed; after after_epoch, with the counters of the next epoch. Data without a length shows
            that it has ended only when it is asked again, so that its last batch is followed by both.
        May change: requests.
        """

    @hookspec(firstresult=True)
    def may_stop(self, loop: Loop) -> bool | None:
        """Whether a stop that somebody asked for may happen now; False delays it, and it is asked again later.

        When: at each batch boundary while there is a request to stop.
        Default: True.
        """

    @hookspec
    def after_epoch(self, loop: Loop) -> None:
        """An epoch is over, its windows closed; ``loop.epoch_finished`` says whether it ran to its end.

        When: once per epoch; ``loop.epoch`` still names it.
        May change: requests; evaluation hangs here.
        """

    # -------------------------------------------------------------------------------------------------- evaluation

    @hookspec
    def before_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        """A pass over evaluation data begins; ``evaluation``, also ``loop.evaluation``, holds its state.

        When: before the first batch, modes set to eval and gradients off.
        May change: the weights that are evaluated, if after_evaluation puts them back.
        """

    @hookspec
    def before_evaluation_batch(self, loop: Loop, evaluation: Evaluation) -> None:
        """``evaluation.batch`` is about to be evaluated.

        When: once per evaluation batch, after it was moved.
        May change: ``evaluation.batch``; one that is None is passed over.
        """

    @Meant(none=True)
    @hookspec(firstresult=True)
    def evaluate_batch(self, loop: Loop, evaluation: Evaluation) -> Any:
        """Run the module on ``evaluation.batch`` and return what it returns.

        When: once per evaluation batch that is not None.
        Default: the module's ``validation_step``, ``test_step`` or ``predict_step``, as the stage is.
        Order: wrap it for autocast and the like.
        """

    @hookspec
    def after_evaluation_batch(self, loop: Loop, evaluation: Evaluation) -> None:
        """``evaluation.output`` is known: what the step returned, or None for a batch that was None.

        When: once per evaluation batch.
        May change: nothing.
        """

    @hookspec
    def after_evaluation_batches(self, loop: Loop, evaluation: Evaluation) -> None:
        """Every batch of every loader has been evaluated; what is logged now is still among the metrics of the pass.

        When: once per pass that did not end with an error, before its numbers are computed.
        May change: what is logged, by ``loop.log``.
        """

    @hookspec
    def after_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        """The pass is over and ``evaluation.metrics`` has its numbers.

        When: once per pass whose before_evaluation began; also when it ended with an error, then without numbers.
        May change: what before_evaluation changed, back.
        """

    # ------------------------------------------------------------------------------------------------ what else is told

    @hookspec
    def log_metrics(self, loop: Loop, metrics: Mapping[str, float], step: int) -> None:
        """Write numbers down.

        When: whenever somebody calls ``loop.write(metrics)``; on the main rank alone.
        May change: nothing.
        """

    @hookspec
    def on_interrupt(self, loop: Loop) -> None:
        """The user or the system asked the run to end early; ``loop.stop_reason`` says who.

        When: once, at the safe point where the run ends.
        May change: nothing; save what must not be lost.
        """

    @hookspec
    def on_error(self, loop: Loop, error: BaseException) -> None:
        """The run ends with ``error``, which goes on to the user whatever is returned here.

        When: on the way out, for each plugin whose setup began, in reverse order.
        May change: nothing; an error in here is noted on ``error``.
        """

    @hookspec
    def after_fit(self, loop: Loop) -> None:
        """Training is over, however it ended; ``loop.status`` says how.

        When: once per fit, in reverse order, after on_error and before teardown.
        May change: nothing that training needs.
        """

    @hookspec
    def teardown(self, loop: Loop) -> None:
        """Put back what setup changed.

        When: last of all, for each plugin whose setup began, in reverse order.
        May change: everything of one's own.
        """


HOOKS.update(name for name, spec in vars(Hooks).items() if hasattr(spec, "lightloop_spec"))
