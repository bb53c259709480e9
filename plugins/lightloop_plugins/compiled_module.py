"""Train modules that were compiled with ``torch.compile(module)``."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from lightloop import Loop, Plugin, hookimpl


class CompiledModule(Plugin):
    """Train ``torch.compile(module)`` like ``module.compile()``: its steps are the module's, its calls are compiled.

    Taken as it is, the wrapper would hand on the module's own steps, in which nothing is compiled; and the names of its
    parameters, which checkpoints keep, would not be the module's.
    """

    name = "compiled_module"
    default = True
    before = ("accelerator", "strategy", "compile")
    transient = ("_wrapper", "_before")

    def validate(self) -> None:
        self._wrapper: Any = None
        self._before: Any = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._wrapper = loop.module if is_wrapper(loop.module) else None
        if self._wrapper is None:
            loop.opt_out(self)
            return
        module: Any = self._wrapper._orig_mod
        self._before = module._compiled_call_impl
        module._compiled_call_impl = self._wrapper.dynamo_ctx(module._call_impl)
        loop.module = module

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._wrapper is not None:
            self._wrapper._orig_mod._compiled_call_impl = self._before
            loop.module, self._wrapper, self._before = self._wrapper, None, None


def is_wrapper(module: nn.Module) -> bool:
    """Whether ``torch.compile`` has made ``module`` of another one."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # seconds to import, and then there can be none
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)
