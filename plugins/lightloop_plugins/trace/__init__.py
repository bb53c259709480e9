"""Trace a fit: which hooks ran, how long, and what they changed, as a table and as a trace file for a viewer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from time import perf_counter
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import replace_in
from lightloop_plugins.run_dir import RUN_DIR
from lightloop_plugins.trace.changes import Marks, changes, marks
from lightloop_plugins.trace.report import Calls, table

LONGEST = 200_000
"""So many calls are kept for the trace; those that follow are in the table alone."""


class Trace(Plugin):
    """Record every hook call, how long it took, and what it changed.

    Told are learning rates, requests (to stop, to end the epoch, to skip), the batch, the loss, gradients and parameters:
    of these last by their versions, which the device is not asked for, so that a value that was written but stayed the
    same counts as changed, and a write through ``.data`` is not seen. Times are those of the host, and those of a wrapper
    without what it surrounds. The trace, ``trace.json`` in the run's directory, is of the form that chrome://tracing and
    Perfetto read.
    """

    name = "trace"
    tags = ("watches",)
    after = ("run_dir",)
    requires = ("run_dir",)
    conflicts = ("profiler",)
    transient = ("calls", "events", "_loop", "_began", "seconds", "_path")

    to: bool | str | os.PathLike[str] = option(
        False, "Trace the fit: True, or the path of the trace file; False is off.", flag="trace"
    )

    def validate(self) -> None:
        self.calls: dict[tuple[str, str], Calls] = {}
        self.events: list[tuple[str, str, float, float, tuple[str, ...]]] = []
        self._loop: Loop | None = None
        self._began = 0.0
        self._path: Path | None = None
        self.seconds = 0.0

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage != "fit" or not loop.world.is_main:
            loop.opt_out(self)
            return
        self.calls, self.events = {}, []
        self._path = Path(self.to).absolute() if isinstance(self.to, (str, os.PathLike)) else None
        self._loop, self._began = loop, perf_counter()
        loop.hook.rebuild(watch=self._watch, watch_wrapper=self._watch_wrapper)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._loop is None:
            return
        self.seconds, self._loop = perf_counter() - self._began, None
        loop.hook.rebuild()
        text = table(self.calls, self.seconds)
        print(f"\n{text}", file=sys.stderr)
        directory = loop.stash.get(RUN_DIR)
        if directory is not None:
            with replace_in(directory, "trace.txt", encoding="utf-8") as file:
                file.write(text + "\n")
        if self._path is not None:
            self._path.write_text(json.dumps(self.chrome()), encoding="utf-8")
        elif directory is not None:
            with replace_in(directory, "trace.json", encoding="utf-8") as file:
                json.dump(self.chrome(), file)

    def chrome(self) -> dict[str, Any]:
        """The events in the format of Chrome's tracing: a row for each plugin."""
        rows = {plugin: number for number, plugin in enumerate(dict.fromkeys(event[1] for event in self.events))}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": plugin}}
            for plugin, row in rows.items()
        ]
        for hook, plugin, begin, end, changed in self.events:
            span = {"ts": begin * 1e6, "dur": (end - begin) * 1e6, "pid": 0, "tid": rows[plugin]}
            events.append({"ph": "X", "name": hook, "cat": plugin, **span, "args": {"changed": ", ".join(changed)}})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def _watch(self, hook: str, plugin: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            before, begin = self._marks(), perf_counter()
            try:
                return function(*arguments)
            finally:
                self._note(hook, plugin, begin, before)

        return watched

    def _watch_wrapper(self, hook: str, plugin: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Generator[None, Any, Any]:
            wrapper: Generator[None, Any, Any] = function(*arguments)
            self._timed(hook, plugin, next, wrapper)
            try:
                result = yield
            except BaseException as error:
                self._timed(hook, plugin, wrapper.throw, error)
            else:
                self._timed(hook, plugin, wrapper.send, result)
            yield  # it has yielded a second time, which is for the relay to refuse

        return lambda *arguments: _answering(watched(*arguments))

    def _timed(self, hook: str, plugin: str, act: Callable[..., Any], *arguments: Any) -> Any:
        before, begin = self._marks(), perf_counter()
        try:
            return act(*arguments)
        except StopIteration as stop:
            raise _Answer(stop.value) from None
        finally:
            self._note(hook, plugin, begin, before)

    def _marks(self) -> Marks | None:
        return None if self._loop is None else marks(self._loop)

    def _note(self, hook: str, plugin: str, begin: float, before: Marks | None) -> None:
        end = perf_counter()
        if self._loop is None or before is None:
            return
        changed = changes(before, marks(self._loop))
        calls = self.calls.setdefault((hook, plugin), Calls())
        calls.add(end - begin, changed)
        if len(self.events) < LONGEST:
            self.events.append((hook, plugin, begin - self._began, end - self._began, changed))


class _Answer(Exception):  # noqa: N818  # it is no error
    """A wrapper has returned; StopIteration cannot pass a generator."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def _answering(wrapper: Generator[None, Any, Any]) -> Generator[None, Any, Any]:
    try:
        return (yield from wrapper)
    except _Answer as answer:
        return answer.value
