"""Train in mixed or lower precision."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import context, map_leaves, refuse_closures, searches_line
from lightloop_plugins.precision.lstm import bypass_onednn

NAMES = {"32-true": "32", "16": "16-mixed", "bf16": "bf16-mixed", "64-true": "64"}
"""Other spellings of a precision."""
WHOLE = {"64": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16}
CONVERSIONS = {"64": "double", "16-true": "half", "bf16-true": "bfloat16"}
"""The method of a module that converts it."""
MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class Precision(Plugin):
    """Set the floating-point type of parameters and computation.

    * ``32`` (or ``"32-true"``): everything as it is.
    * ``"bf16-mixed"`` (or ``"bf16"``): parameters stay float32; ``torch.autocast`` around forward and evaluation.
    * ``"16-mixed"`` (or ``16``): the same in float16, and the loss is scaled so that small gradients survive
      (``torch.amp.GradScaler``, one for each optimizer). Gradients are unscaled once, before anybody measures or clips
      them; where they overflowed, on any rank, the step is skipped and not counted; after each window, stepped or
      skipped, the scale is updated once. Whether they overflowed is read from the device at each step. Weights of
      batches multiply the loss as well: where they are large, begin with a smaller ``init_scale``, or the first steps
      are skipped until the scale has come down by as much.
    * ``64`` (or ``"64-true"``), ``"16-true"``, ``"bf16-true"``: parameters, buffers and the batches' floating-point
      tensors are converted, and it is the default type inside forward and evaluation. The module stays converted after
      the run, so that nothing that was learnt is rounded.
    """

    name = "precision"
    group = "precision"
    after = ("accelerator", "strategy")
    disturbs = ("gradients", "parameters")
    state = ("scalers", "_scaled")
    transient = ("mode", "_around", "_bypasses", "before", "after")

    precision: int | str = option(
        32,
        "Floating-point type: 32, 64, 'bf16-mixed', '16-mixed' (also 16), 'bf16-true' or '16-true'.",
        flag="precision",
        aliases={"use_amp": lambda use: 16 if use else 32},
    )
    amp_level: str | None = option(None, "Not supported: it was a setting of apex.", flag="amp_level", enables=False)
    init_scale: float = option(2.0**16, "16-mixed: initial loss scale.", enables=False)
    growth_interval: int = option(
        2000, "16-mixed: number of windows without overflow after which the scale doubles.", enables=False
    )

    def validate(self) -> None:
        if self.amp_level is not None:
            raise self.invalid("amp_level", "left out, for apex is gone: O1 is precision='16-mixed', O3 '16-true'")
        self.mode = NAMES.get(str(self.precision), str(self.precision))
        if self.mode not in ("32", *WHOLE, *MIXED):
            raise self.invalid("precision", f"32, 16, {', '.join(map(repr, (*WHOLE, *MIXED)))}")
        if self.mode in WHOLE:  # a strategy looks at the types of parameters when it wraps them
            vars(self).update(after=("accelerator",), before=("strategy",))
        self.scalers: list[torch.amp.GradScaler] = []
        self._scaled: set[int] = set()  # optimizers in whose open window there are gradients of a scaled loss
        self._around: Callable[[], AbstractContextManager[Any]] | None = None
        self._bypasses: list[RemovableHandle] = []

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if self.mode == "32":
            loop.opt_out(self)
            return
        if self.mode != "16-mixed":
            loop.opt_out(self, "before_fit", "backward", "unscale_gradients", "after_step", "on_step_skipped")
        if self.mode in WHOLE:
            getattr(loop.module, CONVERSIONS[self.mode])()
            self._around = partial(_default_dtype, WHOLE[self.mode])
        else:
            loop.opt_out(self, "move_batch")
            device, dtype = _usable(loop, self), MIXED[self.mode]
            self._around = partial(torch.autocast, device, dtype)
            self._bypasses = bypass_onednn(loop.module, dtype) if device == "cpu" else []

    @hookimpl(wrapper=True)
    def move_batch(self, loop: Loop, batch: Any) -> Generator[None, Any, Any]:
        return map_leaves(partial(_cast, dtype=WHOLE[self.mode]), (yield))

    @hookimpl(wrapper=True)
    def forward(self, loop: Loop) -> Generator[None, Any, Any]:
        assert self._around is not None
        with self._around():
            return (yield)

    @hookimpl(wrapper=True)
    def evaluate_batch(self, loop: Loop) -> Generator[None, Any, Any]:
        assert self._around is not None
        with self._around():
            return (yield)

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        why = "whose line search float16 is too coarse for: use 32 or 'bf16-mixed', or another optimizer"
        refuse_closures(loop, "precision='16-mixed'", why, searches_line)
        scaler = partial(torch.amp.GradScaler, _device(loop).type, float(self.init_scale))
        self.scalers = [scaler(growth_interval=self.growth_interval) for _ in loop.windows]
        for each in self.scalers:  # a window that was open in a saved run may close before another loss is scaled
            each.scale(torch.zeros((), device=_device(loop)))
        self._scaled = set()

    @hookimpl(wrapper=True)
    def backward(self, loop: Loop) -> Generator[None, bool | None, bool | None]:
        loss = loop.loss
        assert loss is not None
        loop.loss = self._scaler(loop).scale(loss)
        self._scaled.add(loop.optimizer_idx or 0)
        try:
            return (yield)
        finally:
            loop.loss = loss

    @hookimpl
    def unscale_gradients(self, loop: Loop) -> None:
        scaler = self._scaler(loop)
        if not self._to_unscale(loop):
            return
        if loop.again is not None:
            scaler._per_optimizer_states.pop(id(loop.optimizer), None)  # it would unscale once a step
        scaler.unscale_(loop.optimizer)
        overflows = list(scaler._found_inf_per_device(loop.optimizer).values())
        for overflow in overflows:
            overflow.copy_(loop.world.reduce(overflow, "max"))
        if any(overflow.item() for overflow in overflows):
            loop.skip_step(f"gradients overflowed in float16, the loss multiplied by {scaler.get_scale():g}")
            if loop.again is not None and scaler.get_scale() > 1:  # a step that has begun cannot be skipped
                scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
                loop.again = True

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        if self._to_unscale(loop):
            self._scaler(loop).update()
        self._scaled.discard(loop.optimizer_idx or 0)

    @hookimpl
    def on_step_skipped(self, loop: Loop) -> None:
        self.after_step(loop)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        for handle in self._bypasses:
            handle.remove()
        self._bypasses = []

    def _to_unscale(self, loop: Loop) -> bool:
        """Whether the gradients are scaled: not those of a ``loss.backward()`` that went past the loop."""
        return bool(loop.gradients) and (loop.optimizer_idx or 0) in self._scaled

    def _scaler(self, loop: Loop) -> torch.amp.GradScaler:
        return self.scalers[loop.optimizer_idx or 0]

    def state_dict(self) -> dict[str, Any]:
        return {"scalers": [scaler.state_dict() for scaler in self.scalers], "scaled": sorted(self._scaled)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for scaler, saved in zip(self.scalers, state["scalers"], strict=True):
            scaler.load_state_dict(dict(saved))
        self._scaled = set(state["scaled"])


def _device(loop: Loop) -> torch.device:
    """Where forward runs: the module may be elsewhere than a device plugin would put it."""
    return next((parameter.device for parameter in loop.module.parameters()), loop.device)


def _usable(loop: Loop, plugin: Precision) -> str:
    """The type of device to autocast on; an error where autocast or scaler would silently turn themselves off."""
    device = _device(loop).type
    available = torch.amp.is_autocast_available(device) and (device != "cuda" or torch.cuda.is_available())
    if not available:
        raise plugin.invalid("precision", f"32 or 64 on {device!r}, for which this torch has no autocast")
    halves = [name for name, parameter in loop.module.named_parameters() if parameter.dtype == torch.float16]
    if plugin.mode == "16-mixed" and halves:
        raise plugin.invalid("precision", f"'16-true' for parameters that are float16 already, such as {halves[0]}")
    return device


def _cast(leaf: Any, path: str, dtype: torch.dtype) -> Any:
    if isinstance(leaf, (Tensor, PackedSequence)):
        data = leaf if isinstance(leaf, Tensor) else leaf.data
        return leaf.to(dtype) if data.is_floating_point() else leaf
    return leaf


@context
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
