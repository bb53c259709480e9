"""What plugins do to the loss and to the gradient of a step, where it is not what the loop can go on with."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightloop.exceptions import add_note

if TYPE_CHECKING:
    from lightloop.loop import Loop


def check_edits(loop: Loop) -> None:
    """Refuse that ``before_step`` has left ``loop.gradients`` other than the gradients with which the optimizer steps.

    The first windows of a fit are looked at, so that it costs nothing later.

    Raises:
        RuntimeError: which names the plugins that may have done it.
    """
    loop._edits_to_check -= 1
    found, shown = loop.find_gradients(), loop.gradients
    if len(found) == len(shown) and all(one is other for one, other in zip(found, shown, strict=True)):
        return
    able = loop.hook.implementations("before_step")
    editing = [label for label, function in able.items() if _sets(function, "grad", "gradients")] or list(able)
    raise RuntimeError(
        f"before_step of {' or of '.join(editing)} has put other tensors in place of gradients, so that loop.gradients is not "
        "that by which the optimizer steps. Change the tensors in place, such as by torch._foreach_mul_(loop.gradients, 0.5) or "
        "gradient.copy_(other), or, where a parameter's grad must be another one, end with loop.gradients = "
        "loop.find_gradients()"
    )


def blame_for_loss(loop: Loop, error: Exception) -> None:
    """Note on the ``error`` of a backward that a plugin has left a ``loop.loss`` which cannot be differentiated."""
    loss: Any = loop.loss
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return
    found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    found += "" if getattr(loss, "requires_grad", False) else " that needs no gradient"
    for hook in ("after_forward", "before_backward"):
        for label, function in loop.hook.implementations(hook).items():
            if _sets(function, "loss"):
                add_note(
                    error,
                    f"loop.loss is {found}, and {hook} of {label} sets it: set it to one number that needs a gradient",
                )


def _sets(function: Callable[..., Any], *names: str) -> bool:
    """Whether it assigns to an attribute of one of ``names``, or to an item of what has one."""
    done = list(dis.get_instructions(function))
    items = any(each.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for each in done)
    named = [each for each in done if each.argval in names]
    return any(each.opname == "STORE_ATTR" or items for each in named)
