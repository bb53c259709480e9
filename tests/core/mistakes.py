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

OTHERS = ", or None to leave the answer to others"
SETUP = "__import__('lightloop').Setup"
WRONG = {
    "prepare_loader": [
        ("7", f"7 (int); it must return Iterable[Any]{OTHERS}"),
        ("loop.module.net[0].weight", "(Parameter)"),
    ],
    "configure_optimizers": [
        ("torch.optim.SGD(loop.module.parameters(), 0.1)", f"(SGD); it must return Setup{OTHERS}"),
        (
            f"{SETUP}([3])",
            "(Setup), whose 'optimizers' must be list[Optimizer] and is [3] (list); it must return Setup",
        ),
        (
            f"{SETUP}([], [torch.optim.lr_scheduler.LRScheduler])",
            "(Setup), whose 'schedules' must be list[Schedule] and is [",
        ),
    ],
    "epochs_remain": [("3", f"3 (int); it must return bool{OTHERS}")],
    "epoch_batches": [
        ("'5'", f"'5' (str); it must return float, at least 0{OTHERS}"),
        ("-3", f"-3 (int); it must return float, at least 0{OTHERS}"),
        ("float('nan')", f"nan (float); it must return float, at least 0{OTHERS}"),
    ],
    "epoch_steps": [("'many'", f"'many' (str); it must return float, at least 0{OTHERS}"), ("-1.0", "-1.0 (float)")],
    "total_steps": [("[3]", f"[3] (list); it must return float, at least 0{OTHERS}"), ("-1", "-1 (int)")],
    "read_batches": [
        ("3", f"3 (int); it must return Iterable[tuple[Any, bool]]{OTHERS}"),
        ("[loop.piece]", f"[None] (list); it must return Iterable[tuple[Any, bool]]{OTHERS}"),
        ("iter([1])", f"what gives 1 (int) first; it must return Iterable[tuple[Any, bool]]{OTHERS}"),
        ("zip([7], 'n')", "what gives (7, 'n') (tuple) first"),
        ("((batch, 0, 0) for batch in loop.train_loader)", "(tuple) first"),
    ],
    "split_batch": [("loop.batch[0]", f"(Tensor); it must return Sequence[Any]{OTHERS}")],
    "select_optimizers": [
        ("0", f"0 (int); it must return Sequence[int | None]{OTHERS}"),
        ("['0']", f"['0'] (list); it must return Sequence[int | None]{OTHERS}"),
        ("[1]", "what cannot be used: the optimizers are counted from 0 to 0, and another one was selected"),
        ("[-1]", "what cannot be used: the optimizers are counted from 0 to 0, and another one was selected"),
    ],
    "hold_step": [("1", f"1 (int); it must return bool{OTHERS}")],
    "plan_window": [
        ("'2'", f"'2' (str); it must return int, at least 1{OTHERS}"),
        ("0", f"0 (int); it must return int, at least 1{OTHERS}"),
        ("1 - loop.batch_idx // 2", "0 (int)"),  # the first was right
    ],
    "forward": [
        ("'x'", "what cannot be used: it must return a tensor, a mapping with 'loss', or None; it returned str"),
        ("torch.zeros(3)", "what cannot be used: the loss must be one number; it returned shape (3,)"),
        ("{'los': 1}", "what cannot be used: it returned a mapping without 'loss'; its keys are los"),
        ("torch.zeros(())", "what cannot be used: the loss needs no gradient"),
        (
            "{'loss': next(loop.module.parameters()).sum(), 'weight': 'a'}",
            "what cannot be used: the weight that it returns must be one number from 0",
        ),
    ],
    "backward": [("loop.loss", f"(Tensor); it must return bool{OTHERS}")],
    "grad_norm": [
        ("3.0", f"3.0 (float); it must return Tensor without dimensions{OTHERS}"),
        ("torch.ones(2)", "tensor([1., 1.]) (Tensor)"),
    ],
    "step": [("[True]", f"[True] (list); it must return bool{OTHERS}")],
    "zero_grad": [("0", f"0 (int); it must return bool{OTHERS}")],
    "may_stop": [("'no'", f"'no' (str); it must return bool{OTHERS}")],
}
"""For each operation what is no answer to it, and what is said of that."""
FREE = ("move_batch", "evaluate_batch")
"""The operations that may be answered with anything, since users' functions alone know what they take and return."""
ANSWERS = {
    f"{kind}{name}-{number}": (name, Mistake(method(name, f"{start}return {answer}", mark), said))
    for kind, start, mark in (("", "", "@hookimpl"), ("wrapper-of-", "yield\n", "@hookimpl(wrapper=True)"))
    for name, wrong in WRONG.items()
    for number, (answer, said) in enumerate(wrong)
}
"""The hook, and what is found when it is asked."""

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

TUPLE = "Mistaken.{} must be a tuple of names; write ({!r},)"
OWN_NAME = "option '{}' of Mistaken has the name of {}: call it '{}_'"
DECLARED = {
    "ranks": Mistake("ranks = 'master'", "Mistaken.ranks must be 'all' or 'main'; it is 'master'"),
    "on_failure": Mistake("on_failure = 'ignore'", "Mistaken.on_failure must be 'stop' or 'disable'; it is 'ignore'"),
    "disturbs": Mistake("disturbs = ('parametres',)", "it is 'parametres'. Did you mean 'parameters'"),
    "after-a-number": Mistake("after = (3,)", "Mistaken.after has 3, which is no name"),
    "before-a-text": Mistake("before = 'clip'", TUPLE.format("before", "clip")),
    "option-group": Mistake(
        "group: str = option('', 'Group.')", OWN_NAME.format("group", "an attribute", "group")[:50]
    ),
    "option-step": Mistake("step: int = option(1, 'Step.')", OWN_NAME.format("step", "a hook", "step")),
    "flag-plugins": Mistake(
        "n: int = option(1, 'N.', flag='plugins')", "the Trainer has the keyword 'plugins' for itself"
    ),
    "flag-of-two-words": Mistake("n: int = option(1, 'N.', flag='my flag')", "'my flag' can be no keyword"),
    "mutable-default": Mistake("n: list = option([], 'N.')", "the default of an option must be immutable"),
}
"""Refused when the class is made."""

OTHER_TENSORS = "before_step of WHO has put other tensors in place of gradients"
EDITS = {
    "another-list": Mistake(
        method("before_step", "loop.gradients = [2 * each for each in loop.gradients]"), OTHER_TENSORS
    ),
    "another-item": Mistake(method("before_step", "loop.gradients[-1] = 2 * loop.gradients[-1]"), OTHER_TENSORS),
    "another-grad": Mistake(
        method("before_step", "for each in loop.module.parameters():\n    each.grad = 2 * each.grad"), OTHER_TENSORS
    ),
    "no-grad": Mistake(method("before_step", "loop.optimizer.param_groups[0]['params'][0].grad = None"), OTHER_TENSORS),
}
"""Found in the first windows: the optimizer would step by what nothing else has seen, or the other way round."""
