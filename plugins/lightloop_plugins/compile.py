"""Compile the module's steps with torch.compile."""

from __future__ import annotations

from typing import Any

import torch

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import defined

STEPS = ("training_step", "validation_step", "test_step", "predict_step")
LOGS = ("log", "log_dict")


class Compile(Plugin):
    """Compile each step that the module defines with :func:`torch.compile` during a run.

    Logging stays outside: it breaks a step into several graphs. Nothing is passed over: where something cannot be
    compiled, the error is torch's own. Numbers may differ from an uncompiled run's by rounding.
    """

    name = "compile"
    after = ("accelerator", "strategy")
    transient = ("_replaced",)

    on: bool = option(False, "Compile the module's steps with torch.compile.", flag="compile", switch=True)
    mode: str | None = option(
        None,
        "Mode of torch.compile: 'default', 'reduce-overhead', 'max-autotune' …; None is torch's default.",
        enables=False,
    )
    dynamic: bool | None = option(
        None,
        "Compile for dynamic shapes, so that new shapes need no recompilation; None detects whether shapes change.",
        enables=False,
    )
    backend: str = option("inductor", "Backend of torch.compile.", enables=False)
    fullgraph: bool = option(
        False, "Raise an error unless each step compiles to a single graph; such steps cannot log.", enables=False
    )

    def validate(self) -> None:
        if self.mode is not None and self.mode not in (modes := torch._inductor.list_mode_options()):
            raise self.invalid("mode", f"one of {', '.join(modes)}")
        if self.mode is not None and self.backend != "inductor":
            raise self.invalid("mode", f"None with backend {self.backend!r}: modes are inductor's")
        if self.backend != "inductor" and self.backend not in (known := torch.compiler.list_backends(exclude_tags=())):
            raise self.invalid("backend", f"one of {', '.join(known)}")
        self._replaced: dict[str, Any] = {}

    @hookimpl
    def setup(self, loop: Loop) -> None:
        dynamo: Any = torch._dynamo
        if not dynamo.is_dynamo_supported():
            raise RuntimeError(f"compile=True: torch {torch.__version__} cannot compile with this Python: leave it out")
        module = loop.module
        steps = [name for name in STEPS if defined(module, name) is not None]
        if not steps:
            raise ValueError(f"compile=True: {type(module).__name__} has none of {', '.join(STEPS)} to compile")
        options: dict[str, Any] = {"mode": self.mode, "dynamic": self.dynamic, "fullgraph": self.fullgraph}
        for name in steps:
            self._replace(module, name, torch.compile(getattr(module, name), backend=self.backend, **options))
        disable: Any = torch.compiler.disable  # it has no types
        for name in LOGS:
            if callable(getattr(module, name, None)):
                self._replace(module, name, disable(getattr(module, name)))

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        own = vars(loop.module)
        for name, before in self._replaced.items():
            del own[name]
            if before is not None:
                own[name] = before
        self._replaced = {}

    def _replace(self, module: torch.nn.Module, name: str, value: Any) -> None:
        own = vars(module)
        self._replaced[name] = own.get(name)
        own[name] = value
