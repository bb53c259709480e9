"""Read what a user's ``training_step`` returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightloop.gradients import Weight

if TYPE_CHECKING:
    from lightloop.host.dispatch import Relay


def read_output(output: Any, hook: Relay, wanted: bool = True) -> tuple[Tensor | None, Weight | None]:
    """The loss and the weight in what ``forward`` was answered with: a tensor, a mapping with ``loss``, or None.

    Raises:
        TypeError, ValueError: if a loss is ``wanted`` and this is none that can be differentiated; the message names the
            plugin that has answered, or else ``training_step``.
    """
    loss, weight = output, None
    if not isinstance(output, Tensor) and isinstance(output, Mapping):
        if wanted and "loss" not in output:
            raise _wrong(
                hook,
                ValueError,
                f"training_step returned a mapping without 'loss'; its keys are {', '.join(map(str, output))}",
            )
        loss, weight = output.get("loss"), output.get("weight")
    if loss is None or not wanted:
        return None, None
    if not isinstance(loss, Tensor):
        raise _wrong(
            hook,
            TypeError,
            f"training_step must return a tensor, a mapping with 'loss', or None; it returned {type(loss).__name__}",
        )
    if loss.numel() != 1:
        raise _wrong(
            hook,
            ValueError,
            f"the loss must be one number; training_step returned shape {tuple(loss.shape)}. Take its mean",
        )
    if not loss.requires_grad:
        raise _wrong(
            hook,
            ValueError,
            "the loss needs no gradient: it does not depend on a parameter that requires one. Look for .detach(), .item(), "
            "torch.no_grad() or frozen parameters on its way",
        )
    return loss, None if weight is None else _read_weight(weight, hook)


def _read_weight(weight: Any, hook: Relay) -> Weight:
    if isinstance(weight, Tensor) and weight.numel() == 1:
        return weight.detach().reshape(())
    if isinstance(weight, (int, float, Fraction)) and not isinstance(weight, bool) and 0 <= weight < math.inf:
        return weight
    found = f"a tensor of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else repr(weight)
    raise _wrong(
        hook,
        ValueError,
        f"the weight that training_step returns must be one number from 0, such as how many tokens were scored; it is {found}",
    )


def _wrong(hook: Relay, kind: type[Exception], text: str) -> Exception:
    return hook.wrong("forward", kind, text, usual="training_step")
