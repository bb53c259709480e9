"""Keep values that outlive a batch out of memory that the CUDA graphs of torch.compile overwrite."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import map_leaves


class CudaGraphs(Plugin):
    """Make CUDA graphs safe: those of ``compile_mode="reduce-overhead"`` or "max-autotune", and of what you compiled yourself.

    A graph is replayed in the same memory: what it gave is written over by its next run, unseen. So what a step returns is
    copied; so is each gradient that is still there when the next step begins, as in a window of several batches, where it
    would be added to itself; and each step is marked as a new one (``torch.compiler.cudagraph_mark_step_begin``). A step
    that keeps a tensor elsewhere, as ``self.hidden``, has to keep a ``clone()`` of it; what is logged is one.

    It is there on CUDA devices, where the module or a part of it was compiled to use graphs.
    """

    name = "cuda_graphs"
    default = True
    after = ("accelerator", "strategy", "precision", "compile", "compiled_module")
    transient = ("_parameters", "_kept")

    guard: bool | None = option(
        None,
        "Copy what a step returns out of the memory of CUDA graphs; None does so if any are in use.",
        enables=False,
    )

    def validate(self) -> None:
        self._parameters: list[nn.Parameter] = []
        self._kept: set[int] = set()

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self.validate()
        if not (loop.device.type == "cuda" and uses_graphs(loop.module) if self.guard is None else self.guard):
            loop.opt_out(self)

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._parameters = list(loop.module.parameters())

    @hookimpl(wrapper=True)
    def forward(self) -> Generator[None, Any, Any]:
        self._begin()
        return map_leaves(_copied, (yield))

    @hookimpl(wrapper=True)
    def evaluate_batch(self) -> Generator[None, Any, Any]:
        self._begin()
        return map_leaves(_copied, (yield))

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self.validate()

    def _begin(self) -> None:
        """Let the graphs write over what they have given, save for the gradients that the next backward adds to."""
        for parameter in self._parameters:
            if parameter.grad is None:
                self._kept.discard(id(parameter))
            elif id(parameter) not in self._kept:
                parameter.grad = parameter.grad.clone()
                self._kept.add(id(parameter))
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def uses_graphs(module: nn.Module) -> bool:
    """Whether something of ``module`` was compiled to use CUDA graphs, or by a backend that does not say."""
    return any(config is None or config.get("triton.cudagraphs") for config in _compiled(module))


def _compiled(module: nn.Module) -> Iterator[dict[str, Any] | None]:
    """What each thing of ``module`` that torch.compile has made was compiled with."""
    for part in module.modules():
        own = [kind for kind in type(part).__mro__ if not kind.__module__.startswith("torch.")]
        for value in (part, *vars(part).values(), *(value for kind in own for value in vars(kind).values())):
            if "get_compiler_config" in getattr(value, "__dict__", ()):
                yield value.get_compiler_config()


def _copied(leaf: Any, path: str) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
