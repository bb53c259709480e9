"""A plugin for mypy that sees the hooks of Lightloop's plugins: ``plugins = ["lightloop.testing.mypy_plugin"]``.

Told are methods marked with ``@hookimpl`` whose name is no hook's (``optionalhook=True`` and ``specname=`` are taken at
their word: those are hooks of other plugins), and arguments that a hook does not have. Types of options and of
arguments mypy checks by itself.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable

from mypy.nodes import CallExpr, Decorator, Expression, NameExpr, RefExpr
from mypy.plugin import ClassDefContext, Plugin

from lightloop.hookspecs import Hooks

MARKER = "lightloop.hookspecs.hookimpl"
BASE = "lightloop.host.plugin.Plugin"
SPECS = {
    name: list(inspect.signature(spec).parameters)
    for name, spec in vars(Hooks).items()
    if hasattr(spec, "lightloop_spec")
}


class LightloopPlugin(Plugin):
    """Looks at every class below :class:`lightloop.Plugin`."""

    def get_base_class_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """``check_hooks``, for a class one of whose bases is a plugin."""
        node = self.lookup_fully_qualified(fullname)
        info = node.node if node is not None else None
        mro = [each.fullname for each in getattr(info, "mro", [])]
        return check_hooks if BASE in (fullname, *mro) else None


def check_hooks(context: ClassDefContext) -> None:
    """Report what Lightloop would refuse when the plugin is registered."""
    for statement in context.cls.defs.body:
        if not isinstance(statement, Decorator):
            continue
        marks = [mark for mark in map(_mark, statement.original_decorators) if mark is not None]
        if not marks or {"optionalhook", "specname"} & set(marks[0]):
            continue
        name, known = statement.func.name, SPECS.get(statement.func.name)
        if known is None:
            close = difflib.get_close_matches(name, SPECS, n=1)
            hint = f'; did you mean "{close[0]}"?' if close else ""
            context.api.fail(f'There is no hook "{name}"{hint}', statement)
            continue
        for argument in statement.func.arg_names[1:]:
            if argument not in known:
                context.api.fail(
                    f'Hook "{name}" has no argument "{argument}"; it has {", ".join(known[1:])}', statement
                )


def _mark(decorator: Expression) -> list[str | None] | None:
    """The names of the arguments of ``@hookimpl``; None for another decorator."""
    names: list[str | None] = []
    if isinstance(decorator, CallExpr):
        names, decorator = list(decorator.arg_names), decorator.callee
    marks = isinstance(decorator, RefExpr) and (
        decorator.fullname == MARKER or decorator.fullname.endswith(".hookimpl")
    )
    named = isinstance(decorator, NameExpr) and decorator.name == "hookimpl"
    return names if marks or named else None


def plugin(version: str) -> type[Plugin]:
    """What mypy calls."""
    return LightloopPlugin
