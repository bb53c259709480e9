"""Helpers for parameters and gradients: freeze them, and find NaN or infinity in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from lightloop.exceptions import context
from lightloop.inputs.optimizers import parameters_of

if TYPE_CHECKING:
    from lightloop.loop import Loop


@context
def frozen(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Freeze ``parameters`` inside the context; afterwards their ``requires_grad`` is as before."""
    thawed = [parameter for parameter in parameters if parameter.requires_grad]
    try:
        for parameter in thawed:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in thawed:
            parameter.requires_grad_(True)


def elements(gradient: Tensor) -> Tensor:
    """The values of a gradient of which norms are taken: those of a sparse one with each index once."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def find_nonfinite(loop: Loop, kind: Literal["gradient", "parameter"]) -> str | None:
    """Name the first gradient or parameter of the selected optimizer that is not finite, for people.

    Each tensor that is looked at waits for the device: ask when a norm has told that there is something to find. None
    means that all are finite, and that the norm alone was too large for its type.
    """
    for name, tensor in _named(loop, kind):
        if not tensor.isfinite().all():
            which = f"the gradient of {name}" if kind == "gradient" else f"the parameter {name}"
            return f"{which} has {'NaN' if tensor.isnan().any() else 'infinity'} in it"
    return None


def _named(loop: Loop, kind: str) -> Iterator[tuple[str, Tensor]]:
    names = {id(parameter): name for name, parameter in loop.module.named_parameters()}
    for parameter in parameters_of(loop.optimizer):
        tensor = parameter.grad if kind == "gradient" else parameter
        if tensor is not None:
            yield names.get(id(parameter), "that is not the module's"), elements(tensor)
