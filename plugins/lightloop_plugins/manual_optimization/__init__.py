"""Manual optimization: training_step calls backward and step itself."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lightloop import Key, Loop, Plugin, Setup, hookimpl, option
from lightloop_plugins.manual_optimization.helper import Manual

MANUAL: Key[Manual] = Key("manual_optimization.manual")
"""The helper of the run, for who cannot ask for it by argument."""


class ManualOptimization(Plugin):
    """Let training_step call backward and step itself; plugins still act around each step.

    It is live where the module says ``automatic_optimization = False``. ``loop.optimizers`` are torch's own: their
    ``step()`` is seen, so that gradients are clipped and measured before it, and counters, schedules and checkpoints
    follow. ``loop.global_step`` counts rounds: what one batch steps with different optimizers is one round, and an
    optimizer that steps again begins another; ``loop.optimizer_steps`` counts the steps of each. The argument
    ``manual`` of training_step is a :class:`Manual`.
    """

    name = "manual_optimization"
    before = ("strategy",)
    after = ("optimizer_frequencies",)
    default = True
    arguments = ("manual",)
    transient = ("_manual", "_handles")

    automatic: bool = option(
        True,
        "False: training_step goes backward and steps by itself; so it does where the module says automatic_optimization = False.",
        flag="automatic_optimization",
    )

    def validate(self) -> None:
        self._manual: Manual | None = None
        self._handles: list[Any] = []

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage != "fit" or (self.automatic and getattr(loop.module, "automatic_optimization", True)):
            loop.opt_out(self)
        else:
            loop.step_arguments["manual"] = self._get
            loop.step_order.remove("optimizer_idx")

    @hookimpl(wrapper=True)
    def configure_optimizers(self, loop: Loop) -> Generator[None, Setup, Setup]:
        setup = yield
        setup.by_hand = True
        return setup

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if loop.frequencies:
            raise ValueError(
                "optimizer_frequencies have no meaning with automatic_optimization = False: training_step decides who steps"
            )
        self._manual = loop.stash[MANUAL] = Manual(loop)
        for optimizer in loop.optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._manual.before_raw_step))
            self._handles.append(optimizer.register_step_post_hook(self._manual.after_raw_step))

    @hookimpl(wrapper=True)
    def select_optimizers(self, loop: Loop) -> Generator[None, Any, tuple[None]]:
        yield
        assert self._manual is not None
        self._manual.begin_piece()
        return (None,)

    @hookimpl(wrapper=True)
    def step(self, loop: Loop) -> Generator[None, Any, Any]:
        assert self._manual is not None
        with self._manual.unseen():
            return (yield)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        for handle in self._handles:
            handle.remove()
        self._manual, self._handles = None, []

    def _get(self, loop: Loop) -> Manual:
        assert self._manual is not None
        return self._manual
