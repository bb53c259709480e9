"""What authors of plugins get wrong: each mistake as a class, with what is said of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD = """
import torch
from lightloop import Plugin, hookimpl, option

class Mistaken(Plugin):
    name = "mistaken"
    default = {default}
"""


@dataclass(frozen=True)
class Mistake:
    """The body of a class, and what is said of it; ``WHO`` is how the plugin is called there."""

    body: str
    said: str

    def source(self, default: bool = False) -> str:
        """A module with the plugin."""
        lines = "".join(f"    {line}\n" if line else "\n" for line in self.body.strip("\n").splitlines())
        return HEAD.format(default=default) + lines

    def pattern(self, who: str) -> str:
        """What is said of it, as a pattern."""
        return re.escape(self.said.replace("WHO", who))


YIELDS = (
    "WHO: hook {!r} is a generator and would never run: a wrapper says '@hookimpl(wrapper=True)', and what is no wrapper "
    "returns in place of yielding"
)
KIND = (
    "WHO: hook {!r} is a {} and would never be called: make it a plain method, '@hookimpl' above 'def {}(self, loop)'"
)
FORGETS = (
    "WHO: hook {!r} is a wrapper that returns nothing, so that the answer is lost: end it with 'return (yield)', or with "
    "'answer = yield' and 'return answer'"
)
OPERATIONS = ("step", "backward", "epochs_remain", "forward", "prepare_loader", "select_optimizers", "hold_step")


def method(name: str, lines: str, mark: str = "@hookimpl", start: str = "def") -> str:
    """A method that takes the loop."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"{mark}\n{start} {name}(self, loop):\n{body}"


REFUSED = {
    **{f"{name}-yields": Mistake(method(name, "yield"), YIELDS.format(name)) for name in OPERATIONS},
    "read_batches-is-a-wrapper-that-does-not-say-so": Mistake(
        method("read_batches", "batches = yield\nreturn batches"), YIELDS.format("read_batches")
    ),
    "a-hook-that-tells-yields": Mistake(method("before_step", "yield"), YIELDS.format("before_step")),
    **{
        f"{name}-is-async": Mistake(
            method(name, "return True", start="async def"),
            f"WHO: hook {name!r} is a coroutine and would never run: write 'def' in place of 'async def'",
        )
        for name in ("step", "after_batch", "forward")
    },
    "async-generator": Mistake(
        method("read_batches", "yield 1, True", start="async def"),
        "WHO: hook 'read_batches' is a coroutine and would never run: write 'def' in place of 'async def'",
    ),
    "classmethod-outside": Mistake(
        "@hookimpl\n" + method("step", "return True", "@classmethod"), KIND.format("step", "classmethod", "step")
    ),
    "classmethod-inside": Mistake(
        "@classmethod\n" + method("step", "return True"), KIND.format("step", "classmethod", "step")
    ),
    "staticmethod-inside": Mistake(
        "@staticmethod\n@hookimpl\ndef after_batch(loop):\n    pass",
        KIND.format("after_batch", "staticmethod", "after_batch"),
    ),
    "staticmethod-outside": Mistake(
        "@hookimpl\n@staticmethod\ndef after_batch(loop):\n    pass",
        KIND.format("after_batch", "staticmethod", "after_batch"),
    ),
    "property": Mistake(
        "@property\n@hookimpl\ndef hold_step(self):\n    return True", KIND.format("hold_step", "property", "hold_step")
    ),
    **{
        f"wrapper-of-{name}-forgets-return": Mistake(
            method(name, "yield", "@hookimpl(wrapper=True)"), FORGETS.format(name)
        )
        for name in (*OPERATIONS, "split_batch", "grad_norm", "evaluate_batch", "move_batch")
    },
    "wrapper-forgets-return-in-try": Mistake(
        method("forward", "try:\n    answer = yield\nfinally:\n    pass", "@hookimpl(wrapper=True)"),
        FORGETS.format("forward"),
    ),
    "unmarked": Mistake(
        "def after_batch(self, loop):\n    pass",
        "WHO: hook 'after_batch' is not marked and would never be called: write @hookimpl above it",
    ),
    "misspelt": Mistake(
        method("after_bacth", "pass"), "WHO: hook 'after_bacth' does not exist. Did you mean 'after_batch'"
    ),
}
"""Refused when the Trainer is made."""

WRONG = {
    "epochs_remain": ("3", "3 (int); it must return bool, or None to leave the answer to others"),
    "epoch_steps": ("'many'", "'many' (str); it must return float, or None to leave the answer to others"),
    "hold_step": ("1", "1 (int); it must return bool, or None to leave the answer to others"),
    "backward": ("loop.loss", "(Tensor); it must return bool, or None to leave the answer to others"),
    "step": ("[True]", "[True] (list); it must return bool, or None to leave the answer to others"),
    "zero_grad": ("0", "0 (int); it must return bool, or None to leave the answer to others"),
    "may_stop": ("'no'", "'no' (str); it must return bool, or None to leave the answer to others"),
    "split_batch": ("loop.batch[0]", "(Tensor); it must return Sequence[Any], or None to leave the answer to others"),
    "select_optimizers": ("0", "0 (int); it must return Sequence[int | None], or None to leave the answer to others"),
    "select_optimizers-": (
        "['0']",
        "['0'] (list); it must return Sequence[int | None], or None to leave the answer to others",
    ),
    "grad_norm": ("3.0", "3.0 (float); it must return Tensor, or None to leave the answer to others"),
    "configure_optimizers": (
        "torch.optim.SGD(loop.module.parameters(), 0.1)",
        "(SGD); it must return Setup, or None to leave the answer to others",
    ),
    "read_batches": ("3", "3 (int); it must return Iterable[tuple[Any, bool]], or None to leave the answer to others"),
    "read_batches-": (
        "[loop.piece]",
        "[None] (list); it must return Iterable[tuple[Any, bool]], or None to leave the answer to others",
    ),
    "prepare_loader": ("7", "7 (int); it must return Iterable[Any], or None to leave the answer to others"),
}
ANSWERS = {
    name: Mistake(method(name.strip("-"), f"return {answer}"), said) for name, (answer, said) in WRONG.items()
} | {
    f"wrapper-of-{name.strip('-')}{name[-1:] if name.endswith('-') else ''}": Mistake(
        method(name.strip("-"), f"yield\nreturn {answer}", "@hookimpl(wrapper=True)"), said
    )
    for name, (answer, said) in WRONG.items()
}
"""Found when the hook answers for the first time."""

NEVER = "WHO: {!r} has the name of a hook, is not marked as one and is never called: write '@hookimpl' above 'def {}'"
DOUBTED = {
    "another-signature": Mistake(
        "def after_batch(self, trainer, batch):\n    pass", NEVER.format("after_batch", "after_batch(self, loop)")
    ),
    "no-argument": Mistake("def step(self):\n    pass", NEVER.format("step", "step(self, loop)")),
    "a-class-method": Mistake(
        "@classmethod\ndef on_error(cls, loop):\n    pass", NEVER.format("on_error", "on_error(self, loop, error)")
    ),
    **{
        f"by-a-letter-{name}": Mistake(
            f"def {name}(self, loop):\n    pass",
            f"WHO: {name!r} differs by a letter from the hook 'after_batch', is not marked and is never called as one: write "
            "'@hookimpl' above 'def after_batch', or rename it",
        )
        for name in ("after_bacth", "after_batc", "aftr_batch", "after_batchs", "after-bitch".replace("-", "_"))
    },
}
"""Warned of when the Trainer is made."""
