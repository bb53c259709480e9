"""Let the module override parts of the training loop with the usual methods, such as ``optimizer_step``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any

from torch import Tensor

from lightloop import Evaluation, Loop, Plugin, hookimpl
from lightloop.toolkit import Fixed, Step, bind, defined

OVERRIDES = {
    "training_step_end": ("forward", ("output",)),
    "validation_step_end": ("evaluate_batch", ("output",)),
    "test_step_end": ("evaluate_batch", ("output",)),
    "backward": ("backward", ("loss", "optimizer", "optimizer_idx")),
    "configure_gradient_clipping": ("before_step", ("optimizer", "gradient_clip_val", "gradient_clip_algorithm")),
    "optimizer_step": ("step", ("epoch", "batch_idx", "optimizer", "optimizer_closure")),
    "optimizer_zero_grad": ("zero_grad", ("epoch", "batch_idx", "optimizer", "optimizer_idx")),
}
"""The methods, the hook in which each is called, and the order of its arguments."""
STEP_ENDS = {"validate": "validation_step_end", "test": "test_step_end"}
ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("epoch", "current_epoch", "epoch_nb"), "loop.epoch"),
    **dict.fromkeys(("batch_idx", "batch_nb"), "loop.batch_idx"),
    "optimizer": "loop.optimizer",
    **dict.fromkeys(("optimizer_idx", "opt_idx", "optimizer_i"), "loop.optimizer_idx"),
    **dict.fromkeys(("trainer", "self_trainer"), "loop.trainer"),
    "gradient_clip_val": "loop.trainer.gradient_clip_val",
    "gradient_clip_algorithm": "loop.trainer.gradient_clip_algorithm",
    **dict.fromkeys(("on_tpu", "using_native_amp", "using_lbfgs", "use_amp"), Fixed(False)),
    "loop": "loop",
}
"""What a method may ask for by name, in old spellings too."""


class ModuleHooks(Plugin):
    """Call the methods that the module overrides instead of the loop's defaults; inactive for other modules.

    * ``training_step_end(output)``, ``validation_step_end``, ``test_step_end``: what they return is the step's output.
    * ``backward(loss)``: the loss is weighted for its window, and scaled where precision asks for it.
    * ``configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)``: in the place of the plugin
      ``clip``, whose own way it may have as the argument ``clip``.
    * ``optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)``: called where ``optimizer.step`` would be, and
      only for a step that is really taken. The closure gives the loss; forward and backward are done. Where it does not
      call ``optimizer.step``, the step counts as skipped.
    * ``optimizer_zero_grad(epoch, batch_idx, optimizer, optimizer_idx)``: in the place of dropping the gradients.
    """

    name = "module_hooks"
    after = ("accelerator", "strategy", "precision", "callbacks", "grad_norm", "nonfinite", "clip")
    default = True
    transient = ("_calls", "_output", "_closure", "_stepped")

    def reset(self) -> None:
        self._calls: dict[str, Step] = {}
        self._output: Any = None
        self._closure: Callable[[], Any] | None = None
        self._stepped = False

    @hookimpl
    def setup(self, loop: Loop) -> None:
        step_end = {**ARGUMENTS, **dict.fromkeys(("output", "outputs", "batch_parts"), lambda loop: self._output)}
        arguments = {
            **ARGUMENTS,
            "loss": _weighted_loss,
            "clip": lambda loop: functools.partial(loop.trainer.plugin("clip").before_step, loop),
            **dict.fromkeys(("optimizer_closure", "second_order_closure", "closure"), lambda loop: self._closure),
        }
        for name, (_, order) in OVERRIDES.items():
            if (method := defined(loop.module, name)) is not None:
                given = step_end if name.endswith("step_end") else arguments
                if name in STEP_ENDS.values():
                    given = {**given, **dict.fromkeys(("batch_idx", "batch_nb"), "loop.evaluation.batch_idx")}
                    given["dataloader_idx"] = "loop.evaluation.loader_idx"
                self._calls[name] = bind(method, order, given)
        wanted = {OVERRIDES[name][0] for name in self._calls}
        idle = {hook for hook, _ in OVERRIDES.values()} - wanted
        if idle:
            loop.opt_out(self, *idle)
        if "before_step" in wanted and (clip := loop.trainer.plugin("clip")) is not None:
            loop.opt_out(clip, "before_step")

    @hookimpl(wrapper=True)
    def forward(self, loop: Loop) -> Generator[None, Any, Any]:
        self._output = yield
        return self._calls["training_step_end"](loop)

    @hookimpl(wrapper=True)
    def evaluate_batch(self, loop: Loop, evaluation: Evaluation) -> Generator[None, Any, Any]:
        self._output = yield
        call = self._calls.get(STEP_ENDS.get(evaluation.stage, ""))
        return self._output if call is None else call(loop)

    @hookimpl
    def backward(self, loop: Loop) -> bool:
        self._calls["backward"](loop)
        return True

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        self._calls["configure_gradient_clipping"](loop)
        loop.gradients = loop.find_gradients()

    @hookimpl(wrapper=True)
    def step(self, loop: Loop) -> Generator[None, Any, bool]:
        optimizer, plain, loss = loop.optimizer, loop.optimizer.step, loop.loss
        patched = vars(optimizer).get("step")  # a scheduler keeps one of its own there

        @functools.wraps(plain)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._stepped = True
            return plain(*args, **kwargs)

        @functools.wraps(plain)
        def overridden(closure: Callable[[], Any] | None = None) -> Any:
            self._closure = closure or (lambda: loss if loss is None else loss.detach())
            vars(optimizer)["step"] = counted
            return self._calls["optimizer_step"](loop)

        self._stepped = False
        vars(optimizer)["step"] = overridden
        try:
            applied = yield
        finally:
            self._closure = None
            del vars(optimizer)["step"]
            if patched is not None:
                vars(optimizer)["step"] = patched
        return bool(applied) and self._stepped

    @hookimpl
    def zero_grad(self, loop: Loop) -> bool:
        self._calls["optimizer_zero_grad"](loop)
        return True

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self.reset()


def _weighted_loss(loop: Loop) -> Tensor:
    assert loop.loss is not None
    return loop.loss if loop.share is None else loop.loss * loop.share
