"""Fit the loop to one run: calls of hooks that nobody hears are left out, the loop's own plain answers written in place.

What is written in ``loop.py`` stays what runs, less these calls; lines and names in tracebacks are those of the file.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from lightloop.dispatch import Relay

T = TypeVar("T")


def tailored(kind: type[T], relay: Relay) -> type[T]:
    """A subclass of ``kind`` whose methods make no call of ``hook`` that changes nothing, as ``relay`` has it now.

    A statement ``hook.name(...)`` is left out where nobody is called; ``hook.name(...)`` becomes its value where the only
    answer is one of the loop's own that is an expression in which nothing of the run is called.
    """
    if not _is_as_written(kind):
        return kind
    own = {
        hook: function.__qualname__ for hook, function in relay.own.items() if function.__module__ == kind.__module__
    }
    return _tailored(kind, frozenset(relay.idle), frozenset(own.items()))  # type: ignore[arg-type]


@cache
def _tailored(kind: type[T], idle: frozenset[str], own: frozenset[tuple[str, str]]) -> type[T]:
    module = sys.modules[kind.__module__]
    classes = _classes(module.__name__)
    answers = {name: answer for name, method in own if (answer := _answer(method, classes)) is not None}
    written = copy.deepcopy(classes[kind.__name__])
    written.bases = [ast.Name(kind.__name__, ast.Load())]
    tree = ast.fix_missing_locations(ast.Module([_Tailor(idle, answers).visit(written)], []))
    space: dict[str, Any] = {}
    exec(compile(tree, module.__file__ or "", "exec"), vars(module), space)
    return space[kind.__name__]  # type: ignore[no-any-return]


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """The classes of a module as they are written; none where the source is not there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, SyntaxError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _is_as_written(kind: type) -> bool:
    """Whether the methods of ``kind`` are those of its source: the file may be newer, or somebody has patched one."""
    written = _written(kind.__module__, kind.__name__)
    methods = {name: method for name, method in vars(kind).items() if isinstance(method, types.FunctionType)}
    return bool(written) and all(method.__code__.co_code == written.get(name) for name, method in methods.items())


@cache
def _written(module: str, name: str) -> Mapping[str, bytes]:
    """The code of each method of a class, compiled from its source."""
    if name not in (classes := _classes(module)):
        return {}
    (body,) = _codes(compile(ast.Module([classes[name]], []), "", "exec"))
    return {method.co_name: method.co_code for method in _codes(body)}


def _codes(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _answer(method: str, classes: Mapping[str, ast.ClassDef]) -> ast.expr | None:
    """The one expression that ``method`` of one of ``classes`` returns, if that is all it does and it calls no method."""
    owner, _, name = method.rpartition(".")
    for node in classes[owner].body if owner in classes else ():
        if isinstance(node, ast.FunctionDef) and node.name == name and isinstance(node.body[-1], ast.Return):
            value = node.body[-1].value
            calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
            if len(node.body) == 1 and value is not None and all(isinstance(call, ast.Name) for call in calls):
                return value
    return None


class _Tailor(ast.NodeTransformer):
    def __init__(self, idle: frozenset[str], answers: Mapping[str, ast.expr]) -> None:
        self.idle = idle
        self.answers = answers

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if _hook(node.value) in self.idle:
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        answer = self.answers.get(_hook(node) or "")
        if answer is None:
            return node
        given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        written: ast.expr = _Arguments(given).visit(copy.deepcopy(answer))
        for part in ast.walk(written):
            ast.copy_location(part, node)
        return written


class _Arguments(ast.NodeTransformer):
    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.given.get(node.id, node))


def _hook(node: ast.expr) -> str | None:
    """The hook that ``node`` calls, if it is a call of ``hook.name`` or ``self.hook.name``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    relay = node.func.value
    called = relay.id if isinstance(relay, ast.Name) else relay.attr if isinstance(relay, ast.Attribute) else None
    return node.func.attr if called == "hook" else None
