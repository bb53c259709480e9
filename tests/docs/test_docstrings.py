"""Whatever is public has a docstring.

A hook's is at its specification, an overridden method's in its base or its protocol; the name of a test, in the testing kit, says what it tests.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "lightloop").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")])


def definitions():
    """Every public class, function and method: its file, its node, and the class that it is in."""
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield path, tree, None
        yield from members(path, tree.body, None)


def members(path, body, owner):
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from members(path, node.body, owner)
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        yield path, node, owner
        if isinstance(node, ast.ClassDef):
            yield from members(path, node.body, node)


CLASSES = {
    node.name: node
    for path in FILES
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.ClassDef)
}


def inherited(owner, name):
    """Whether a base of ours has the method, or it is torch's and the base is not ours."""
    for base in owner.bases:
        text = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        known = CLASSES.get(text)
        if known is None:
            return text not in ("object", "Protocol", "Generic", "NamedTuple", "Exception")
        if any(isinstance(each, ast.FunctionDef) and each.name == name for each in known.body) or inherited(
            known, name
        ):
            return True
    return False


def promised(path, name):
    """Whether a Protocol of the same file says what the method does."""
    protocols = [node for node in CLASSES.values() if any(ast.unparse(base) == "Protocol" for base in node.bases)]
    here = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}
    return any(
        each.name == name for node in protocols if node.name in here for each in node.body if hasattr(each, "name")
    )


def is_excused(path, node, owner):
    marks = [ast.unparse(mark).partition("(")[0].rpartition(".")[2] for mark in getattr(node, "decorator_list", [])]
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
        return True
    return bool({"hookimpl", "overload", "setter", "override"} & set(marks)) or (
        owner is not None and (inherited(owner, node.name) or promised(path, node.name))
    )


def test_everything_public_has_a_docstring():
    missing = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {getattr(node, 'name', 'the module')}"
        for path, node, owner in definitions()
        if ast.get_docstring(node) is None and not is_excused(path, node, owner)
    ]
    assert missing == []


def test_there_is_something_to_look_at():
    assert sum(1 for _ in definitions()) > 500
