"""Profile a fit: by hook and plugin, by function, or with torch's profiler."""

from __future__ import annotations

import cProfile
import io
import pstats
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import open_in, replace_in
from lightloop_plugins.run_dir import RUN_DIR

SPANS = {
    "before_fit": "on_train_start",
    "before_epoch": "on_epoch_start",
    "read_batches": "get_train_batch",
    "before_batch": "on_batch_start",
    "split_batch": "tbptt_split_batch",
    "forward": "model_forward",
    "after_forward": "training_step_end",
    "backward": "model_backward",
    "after_backward": "on_after_backward",
    "step": "optimizer_step",
    "after_batch": "on_batch_end",
    "after_epoch": "on_epoch_end",
    "after_fit": "on_train_end",
}
"""The names that the time in a hook has in reports and traces; that in any other hook has the hook's."""
HEAD = ("span", "plugin", "calls", "total s", "mean ms", "share")
END = object()
TRACED = {"wait": 1, "warmup": 1, "active": 3, "repeat": 1}
"""Which batches torch's profiler traces: after two, three."""


class Profiler(Plugin):
    """Measure the time of each plugin's hooks, and print and store a table after the fit.

    Times are those of the host and include what is called inside, wrappers aside; "loop" is the loop's own answer, such as
    the module's step. On a device that works by itself, only "pytorch" sees what it does.

    ``"advanced"`` adds a table of functions (cProfile); ``"pytorch"`` traces batches 3 to 5 with torch.profiler and leaves
    ``trace.json`` in the run's directory. An object with ``start``, ``step`` and ``stop``, such as a torch.profiler.profile
    of your own, is started, stepped after each batch and stopped; a function is called with the name of each span for the
    context in which it runs (``torch.profiler.record_function``, ``torch.cuda.nvtx.range``).
    """

    name = "profiler"
    tags = ("watches",)
    after = ("run_dir",)
    requires = ("run_dir",)
    transient = ("times", "_functions", "_torch", "_tables", "_began")

    kind: object = option(
        None, "True or 'simple', 'advanced', 'pytorch', a profiler, or a function; None is off.", flag="profiler"
    )

    def validate(self) -> None:
        known = self.kind in (None, True, "simple", "advanced", "pytorch")
        if not known and not callable(self.kind) and not hasattr(self.kind, "step"):
            raise self.invalid("kind", "True, 'simple', 'advanced', 'pytorch', a profiler, or a function")
        self.times: dict[tuple[str, str], list[float]] = {}
        self._functions: cProfile.Profile | None = None
        self._torch: Any = None
        self._tables: list[str] = []
        self._began = 0.0

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage != "fit" or not loop.world.is_main:
            loop.opt_out(self)
            return
        self.times, self._tables, self._began = {}, [], perf_counter()
        self._functions = cProfile.Profile() if self.kind == "advanced" else None
        self._torch = self._make_torch(loop)
        if self._torch is None:
            loop.opt_out(self, "after_batch")
        loop.hook.rebuild(watch=self._watch)

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if self._functions is not None:
            self._functions.enable()
        if self._torch is not None:
            self._torch.start()

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        self._torch.step()

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if not self._began:
            return
        seconds, self._began = perf_counter() - self._began, 0.0
        functions, profiler, self._functions, self._torch = self._functions, self._torch, None, None
        loop.hook.rebuild()
        if functions is not None:
            functions.disable()
            self._tables.append(functions_table(functions))
        if profiler is not None:
            profiler.stop()
        text = "\n\n".join([hooks_table(self.times, seconds), *self._tables])
        print(f"\n{text}", file=sys.stderr)
        if (directory := loop.stash.get(RUN_DIR)) is not None:
            with replace_in(directory, "profile.txt", encoding="utf-8") as file:
                file.write(text + "\n")

    def _make_torch(self, loop: Loop) -> Any:
        if hasattr(self.kind, "step"):
            return self.kind
        if self.kind != "pytorch":
            return None

        def keep(profiler: torch.profiler.profile) -> None:
            directory = loop.stash.get(RUN_DIR, Path())
            open_in(directory, "trace.json", "w").close()  # what torch opens next is a file of this run
            profiler.export_chrome_trace(str(directory / "trace.json"))
            self._tables.append(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))

        return torch.profiler.profile(schedule=torch.profiler.schedule(**TRACED), on_trace_ready=keep)

    def _watch(self, hook: str, plugin: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with its time taken."""
        span = SPANS.get(hook, hook)
        label = span if plugin == "loop" else f"{span} ({plugin})"
        context: Callable[[str], AbstractContextManager[Any]] = nullcontext
        if self._torch is not None:
            context = torch.profiler.record_function
        elif callable(self.kind):
            context = self.kind
        entry = self.times.setdefault((span, plugin), [0, 0.0])

        def timed(call: Callable[..., Any], *arguments: Any) -> Any:
            begin = perf_counter()
            try:
                with context(label):
                    return call(*arguments)
            finally:
                entry[0] += 1
                entry[1] += perf_counter() - begin

        def reading(*arguments: Any) -> Iterator[Any] | None:
            batches = function(*arguments)
            return None if batches is None else _each(iter(batches), timed)

        return reading if hook == "read_batches" else lambda *arguments: timed(function, *arguments)


def _each(batches: Iterator[Any], timed: Callable[..., Any]) -> Iterator[Any]:
    """``batches``, with the time taken for which each is waited."""
    while (batch := timed(next, batches, END)) is not END:
        yield batch


def hooks_table(times: Mapping[tuple[str, str], list[float]], seconds: float) -> str:
    """Where the ``seconds`` of a fit went, the longest first."""
    rows = [HEAD]
    for (span, plugin), (calls, total) in sorted(times.items(), key=lambda item: -item[1][1]):
        if calls:
            mean, share = f"{total / calls * 1e3:.3f}", f"{total / seconds:.1%}"
            rows.append((span, plugin, f"{calls:.0f}", f"{total:.3f}", mean, share))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if index < 2 else cell.rjust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]  # fmt: skip
    return "\n".join([f"a fit of {seconds:.3f} s", *lines])


def functions_table(profile: cProfile.Profile) -> str:
    """The functions in which most time was spent."""
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("cumulative").print_stats(30)
    return text.getvalue().strip()
