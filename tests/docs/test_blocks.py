"""Every Python block of the pages and of the README runs, and what a page says that a command prints is printed.

The blocks of a page share a namespace. A comment before a block says what is different about it:

* ``<!-- file: train.py -->``: the block is a file; it is written, and run only by a command of the page.
* ``<!-- run -->``, before a console block: its commands are run where the files of the page are.
* ``<!-- not run: why -->``: it is not run; the reason has to be given.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import types
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?(?P<fence>`{3,})(?P<language>\w+)?[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int
    mark: str

    @property
    def file(self) -> str | None:
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None

    @property
    def runs(self) -> bool:
        return self.language == "python" and not self.mark


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            match["language"] or "",
            match["text"],
            text.count("\n", 0, match.start("text")),
            match["mark"] if match["mark"] and re.match("file: |run$|not run: ", match["mark"]) else "",
        )
        for match in FENCE.finditer(text)
    ]


BLOCKS = {str(page.relative_to(ROOT)): blocks(page) for page in PAGES}


@pytest.mark.parametrize("page", [page for page, found in BLOCKS.items() if any(block.runs for block in found)])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIGHTLOOP_RUNS", raising=False)  # pages say where runs are without it
    torch.manual_seed(0)
    name = "page_" + re.sub(r"\W", "_", page)
    module = types.ModuleType(name)  # where what the page defines can be found by its name
    monkeypatch.setitem(sys.modules, name, module)
    write_files(BLOCKS[page], tmp_path)
    for block in BLOCKS[page]:
        if block.runs:
            code = compile("\n" * block.line + block.text, page, "exec")
            exec(code, vars(module))


@pytest.mark.processes
@pytest.mark.parametrize("page", [page for page, found in BLOCKS.items() if any(b.mark == "run" for b in found)])
def test_the_commands_of_a_page_print_what_it_says(page, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    write_files(BLOCKS[page], here)
    environment = own_environment(tmp_path / "env")
    for block in BLOCKS[page]:
        if block.mark == "run":
            for command, expected in commands(block.text):
                run(command, expected, here, environment)


def test_every_python_block_is_run_or_says_why_not():
    for page, found in BLOCKS.items():
        for block in found:
            if block.language == "python" and block.mark:
                assert block.file or re.fullmatch(r"not run: \S.+", block.mark), f"{page}:{block.line}"
            if block.file is not None:
                others = [other for other in found if other.mark == "run" and block.file.split("/")[-1] in other.text]
                installed = any("pip install" in other.text for other in found if other.mark == "run")
                assert others or installed, f"{page}:{block.line}: nothing runs {block.file}"
    skipped = [block for found in BLOCKS.values() for block in found if block.mark.startswith("not run")]
    assert len(skipped) <= 6, "few blocks are not run"


def write_files(found: list[Block], folder: Path) -> None:
    for block in found:
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Each command of a console block, and the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def own_environment(folder: Path) -> dict[str, str]:
    """An environment of its own, in which all that is installed here is there: what is installed in it stays in it."""
    venv.create(folder, with_pip=False)
    bin = folder / "bin"
    site = next(folder.glob("lib/*/site-packages"))
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "outer.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in sorted(paths)))
    for name, module in (("torchrun", "torch.distributed.run"), ("lightloop", "lightloop"), ("pip", "pip")):
        script = bin / name
        script.write_text(f'#!/bin/sh\nexec "{bin}/python" -m {module} "$@"\n')
        script.chmod(0o755)
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("LIGHTLOOP_", "PYTHONPATH"))},
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way of saying that there is none: what builds need is here
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(command: str, expected: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    printed = iter(done.stdout.splitlines() + done.stderr.splitlines())
    for line in expected:
        if line != "...":
            found = any(other.rstrip() == line.rstrip() for other in printed)
            assert found, f"{command}: {line!r} is not in\n{done.stdout}\n{done.stderr[-3000:]}"
    if not any("Killed" in line for line in expected):
        assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr[-3000:]}"
