"""What plugins may do to the gradient of a step is done in place; what is not, those after them would not see."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    editing = [label for label, function in able.items() if _sets_gradients(function)] or list(able)
    raise RuntimeError(
        f"before_step of {' or of '.join(editing)} has put other tensors in place of gradients, so that loop.gradients is not "
        "that by which the optimizer steps. Change the tensors in place, such as by torch._foreach_mul_(loop.gradients, 0.5) or "
        "gradient.copy_(other), or, where a parameter's grad must be another one, end with loop.gradients = "
        "loop.find_gradients()"
    )


def _sets_gradients(function: Callable[..., Any]) -> bool:
    """Whether it assigns to ``grad``, to ``gradients`` or to an item of something."""
    return any(
        each.opname in ("STORE_SUBSCR", "DELETE_SUBSCR")
        or (each.opname == "STORE_ATTR" and each.argval in ("grad", "gradients"))
        for each in dis.get_instructions(function)
    )
