"""Call callbacks, and the module's methods of the same names, at the events of a run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from lightloop import Evaluation, Loop, Plugin, hookimpl, option
from lightloop.toolkit import Step, bind, warn
from lightloop_plugins.callbacks.events import (
    COMMON,
    EVALUATION,
    ORDERS,
    SAVED,
    TRAINING,
    WORDS,
    check_callback,
    listeners,
    own,
)


def _telling(*events: str) -> Callable[..., None]:
    return lambda self, loop: self._tell(loop, *events)


def _telling_stage(*events: str) -> Callable[..., None]:
    by_stage = {stage: tuple(event.format(word) for event in events) for stage, word in WORDS.items()}
    return lambda self, loop, evaluation: self._tell(loop, *by_stage[evaluation.stage])


class Callbacks(Plugin):
    """Call the methods of :class:`lightloop.Callback` that the callbacks and the module have, and no others.

    A hook in which nobody is to be told anything is not in the run. Of each event the callbacks hear first, in the order of the list, then the module, whose methods lack ``trainer``
    and ``module``. Signatures are looked at once: a method gets what it names, or as many arguments as it has room for.
    What a callback returns from ``state_dict``, or puts into ``checkpoint``, is kept with the state of the plugin.
    """

    name = "callbacks"
    tags = ("watches",)
    after = ("accelerator", "strategy", "precision", "run_dir", "logger")
    before = ("grad_norm", "nonfinite", "clip", "log_every", "validation")
    default = True
    state = ("_callbacks",)
    transient = ("_loop", "_told", "_error", "_training")

    callbacks: Any = option((), "Objects whose methods are called at the events of a run.", flag="callbacks")

    for _hook in ("before_fit", "before_backward", "after_backward", "after_batch", "after_epoch"):
        locals()[_hook] = hookimpl(_telling(*TRAINING[_hook]))
    for _hook in ("before_evaluation_batch", "after_evaluation_batch", "after_evaluation_batches"):
        locals()[_hook] = hookimpl(_telling_stage(*EVALUATION[_hook]))
    del _hook
    _start = _telling_stage(*EVALUATION["before_evaluation"])
    _end = _telling_stage(*EVALUATION["after_evaluation"])

    def validate(self) -> None:
        several = isinstance(self.callbacks, Sequence) and not isinstance(self.callbacks, str)
        given = self.callbacks if several else [] if self.callbacks is None else [self.callbacks]
        self._callbacks: list[Any] = list(given)
        for callback in self._callbacks:
            check_callback(callback)

    def reset(self) -> None:
        self._loop: Loop | None = None
        self._told: dict[str, list[Step]] = {}
        self._error: BaseException | None = None
        self._training = False

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._loop = loop
        extra = {"exception": lambda loop: self._error}
        self._told = {
            event: listeners(self._callbacks, loop.module, event, extra) for event in ORDERS if event not in SAVED
        }
        keep = {"before_epoch"} if self._told["on_train_end"] else set()
        evaluation = {
            h: [e.format(word) for e in events for word in WORDS.values()] for h, events in EVALUATION.items()
        }
        evaluation["before_evaluation"].append("on_sanity_check_start")
        for hook, events in {**TRAINING, **evaluation}.items():
            if hook not in keep and not any(self._told[event] for event in events):
                loop.opt_out(self, hook)
        if self._told["prepare_data"]:
            if loop.world.is_main:
                self._tell(loop, "prepare_data")
            loop.world.barrier()
        self._tell(loop, "setup")

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        if not self._training:
            self._training = True
            self._tell(loop, "on_train_start")
        if not loop.batch_idx:  # a run that is resumed inside an epoch does not begin it again
            self._tell(loop, "on_epoch_start", "on_train_epoch_start")

    @hookimpl
    def before_batch(self, loop: Loop) -> None:
        for event in TRAINING["before_batch"]:
            for call in self._told[event]:
                answer = call(loop)
                if type(answer) is int and answer == -1:
                    loop.skip_batch(f"{event} returned -1")
                    loop.end_epoch(f"{event} returned -1")

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        self._tell(loop, *TRAINING["before_step"])
        loop.gradients = loop.find_gradients()  # some may be others now

    @hookimpl(wrapper=True)
    def zero_grad(self, loop: Loop) -> Generator[None, Any, Any]:
        if loop.window.batches and not loop.replaying:  # not before the first batch, when there is nothing to see
            self._tell(loop, "on_before_zero_grad")
        return (yield)

    @hookimpl
    def before_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        if evaluation.sanity:
            self._tell(loop, "on_sanity_check_start")
        self._start(loop, evaluation)

    @hookimpl
    def after_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        self._end(loop, evaluation)
        if evaluation.sanity:
            self._tell(loop, "on_sanity_check_end")

    @hookimpl
    def on_interrupt(self, loop: Loop) -> None:
        self.on_error(loop, KeyboardInterrupt(loop.stop_reason))

    @hookimpl
    def on_error(self, loop: Loop, error: BaseException) -> None:
        self._error = error
        if isinstance(error, KeyboardInterrupt):
            self._tell(loop, "on_keyboard_interrupt")
        self._tell(loop, "on_exception")

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if self._training:
            self._tell(loop, "on_train_end")
        self._tell(loop, "on_fit_end")

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        try:
            self._tell(loop, "teardown")
        finally:
            self.reset()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"callbacks": {}, "checkpoint": {}}
        for key, receiver in self._keyed().items():
            if own(receiver, "state_dict") and key != "module":
                state["callbacks"][key] = receiver.state_dict()
            saved: dict[str, Any] = {}
            returned = self._call(receiver, "on_save_checkpoint", saved)
            if saved := {**saved, **(returned if isinstance(returned, Mapping) else {})}:
                state["checkpoint"][key] = saved
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        there = self._keyed()
        for key in {*state["callbacks"], *state["checkpoint"]} - set(there):
            warn(f"the checkpoint has state of the callback {key}, which is not there any more")
        for key, receiver in there.items():
            if key in state["callbacks"] and key != "module":
                receiver.load_state_dict(state["callbacks"][key])
            if key in state["checkpoint"]:
                self._call(receiver, "on_load_checkpoint", state["checkpoint"][key])

    def _tell(self, loop: Loop, *events: str) -> None:
        for event in events:
            for call in self._told.get(event, ()):
                call(loop)

    def _keyed(self) -> dict[str, Any]:
        """The callbacks, and the module of a run, by the keys under which their state is kept."""
        keyed: dict[str, Any] = {}
        for callback in self._callbacks:
            key = getattr(callback, "state_key", None) or f"{type(callback).__module__}.{type(callback).__qualname__}"
            twins = sum(other.split("#")[0] == key for other in keyed)
            keyed[f"{key}#{twins + 1}" if twins else key] = callback
        return keyed if self._loop is None else {**keyed, "module": self._loop.module}

    def _call(self, receiver: Any, event: str, checkpoint: dict[str, Any]) -> Any:
        method = own(receiver, event)
        if method is None or self._loop is None:
            return None
        order = ORDERS[event] if receiver is not self._loop.module else ORDERS[event][2:]
        names = dict.fromkeys(("checkpoint", "checkpointed_state", "callback_state"), lambda loop: checkpoint)
        return bind(method, order, {**COMMON, **names})(self._loop)
