"""Show on a CUDA GPU what no machine without one can: that its paths give the same numbers, and do not wait.

    python benchmarks/gpu.py [--rounds 6] [--batches 40]

It needs a CUDA build of torch, and this clone installed with it (``pip install --no-build-isolation -e .``). Each check is
a line; the exit status is 1 if one has failed, and 2 if there is no GPU. Times are told and not judged. ``--accelerator cpu`` tries the script out: what needs a
GPU is then passed over.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from lightloop import Loop, Module, Plugin, Trainer, hookimpl
from lightloop_plugins.accelerators._device import place, transfer

Batches = list[tuple[Tensor, Tensor]]
EPOCHS = 5
"""How many a timed run has, so that what it costs to begin one is small."""


class Classifier(Module):
    """A multilayer perceptron; it returns its logits as well, for others to keep."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        self.net = nn.Sequential(*hidden, nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape ``(n, 10)``."""
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Mean cross-entropy, logged."""
        logits = self(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1])
        self.log("loss", loss)
        return {"loss": loss, "logits": logits.detach()}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Momentum, so that every gradient counts in all later steps."""
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)


class Keeps(Plugin):
    """Keep what the step gave for each batch, as a user's callback may."""

    name = "keeps"
    after = ("accelerator",)

    def validate(self) -> None:
        self.kept: list[Tensor] = []

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        assert loop.loss is not None
        self.kept += [loop.loss.detach(), loop.output["logits"]]


class NoWait(Plugin):
    """Have torch raise where the program waits for the GPU, from the fourth batch on: the first ones set things up."""

    name = "no_wait"
    after = ("accelerator",)

    @hookimpl
    def before_batch(self, loop: Loop) -> None:
        judged = loop.batch_idx >= 3 and not loop.is_last_batch
        torch.cuda.set_sync_debug_mode("error" if judged else "default")

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        torch.cuda.set_sync_debug_mode("default")


class Checks:
    """What is checked, each on the same module and data."""

    def __init__(self, kind: str, batches: int, width: int, rows: int) -> None:
        self.kind, self.cuda = kind, kind != "cpu"
        self.width, self.count = width, batches
        distinct = [(torch.randn(rows, width), torch.randint(10, (rows,))) for _ in range(4)]
        if self.cuda:
            distinct = [(x.pin_memory(), y.pin_memory()) for x, y in distinct]
        self.data: Batches = [distinct[index % 4] for index in range(batches)]

    def module(self, layers: int = 5) -> Classifier:
        """The same weights each time."""
        torch.manual_seed(0)
        return Classifier(self.width, layers)

    def trained(self, plugins: list[Any], module: Classifier | None = None, **options: Any) -> list[Tensor]:
        """Weights after training, and all that was kept of the batches."""
        module, keeps = self.module() if module is None else module, Keeps()
        Trainer(["-*", keeps, *plugins], accelerator=self.kind, **options).fit(module, self.data)
        return [tensor.detach().cpu() for tensor in (*module.parameters(), *keeps.kept)]

    def side_stream(self) -> str:
        """A side stream changes no bit of weights, losses and outputs."""
        with patch.object(place, "STREAMS", ()):
            plain = self.trained([], accumulate_grad_batches=4)
        ours = self.trained([], accumulate_grad_batches=4)
        assert all(torch.equal(*pair) for pair in zip(ours, plain, strict=True)), "the numbers differ"
        return f"{len(ours)} tensors equal to the bit"

    def graphs(self) -> str:
        """CUDA graphs train as the module does uncompiled, up to rounding, through windows of several batches."""
        plain = self.trained([], self.module(2), accumulate_grad_batches=4)
        step = self.trained(
            ["cuda_graphs"], self.module(2), accumulate_grad_batches=4, compile=True, compile_mode="reduce-overhead"
        )
        own = self.module(2)
        own.net.compile(mode="reduce-overhead")
        inner = self.trained(["cuda_graphs"], own, accumulate_grad_batches=4)
        for graphed in (step, inner):
            torch.testing.assert_close(graphed, plain, rtol=1e-3, atol=1e-4)
        return "compiled by compile_mode, and by the user"

    def overlap(self) -> str:
        """Large copies run on another stream than the kernels, and while kernels run."""
        with torch.profiler.profile() as profile:
            self.trained([])
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        kernels = [event for event in events if event.get("cat") == "kernel"]
        copies = [event for event in events if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]]
        copies = [event for event in copies if "Pinned" in event["name"] and event["args"]["bytes"] >= transfer.WORTH]
        assert kernels, "the profiler saw no kernel"
        main = statistics.mode(event["args"]["stream"] for event in kernels)
        assert len(copies) == self.count, f"{len(copies)} large copies for {self.count} batches"
        assert all(copy["args"]["stream"] != main for copy in copies), "copies are on the stream of the kernels"
        beside = sum(any(_overlap(copy, kernel) for kernel in kernels) for copy in copies)
        assert beside >= self.count // 2, f"{beside} of {self.count} copies ran beside a kernel"
        return f"{beside} of {self.count} copies ran beside a kernel"

    def no_wait(self) -> str:
        """With all default plugins but the progress bar, which draws a few times a second, no batch waits for the GPU."""
        with tempfile.TemporaryDirectory() as folder:
            options = {"accelerator": self.kind, "default_root_dir": folder, "log_every_n_steps": self.count + 1}
            clip = {"gradient_clip_val": 1.0, "accumulate_grad_batches": 2, "track_grad_norm": 2.0}
            Trainer([NoWait(), "-progress"], **options, **clip).fit(self.module(1), self.data)
        return f"{self.count - 4} batches"

    def memory(self) -> str:
        """Peak memory does not grow with the number of batches."""
        peaks = []
        for epochs in (1, 1, 5):  # the first one warms the libraries
            torch.cuda.reset_peak_memory_stats()
            Trainer(["-*"], accelerator=self.kind, max_epochs=epochs).fit(self.module(), self.data)
            torch.cuda.synchronize()
            peaks.append(torch.cuda.max_memory_allocated())
        batches = (transfer.AHEAD + 1) * self.data[0][0].nbytes  # how many wait on the device differs from run to run
        assert peaks[2] <= peaks[1] + batches, f"{peaks[1]} bytes in one epoch, {peaks[2]} in five"
        return f"{peaks[1] / 2**20:.0f} MiB in one epoch, {peaks[2] / 2**20:.0f} MiB in five"

    def times(self, rounds: int) -> str:
        """Time for a batch, as multiples of that of a plain loop in the same round: the median of all rounds."""
        ways: dict[str, Callable[[], Any]] = {
            "plain": functools.partial(self._plain, self.module().to(self.kind)),
            "lightloop": functools.partial(self._ours, self.module().to(self.kind), {}),
            "fused": functools.partial(self._ours, self.module().to(self.kind), {"fused_optimizer": True}),
        }
        for run in ways.values():
            run()
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, run in ways.items():
                begin = time.perf_counter()
                run()
                taken[name].append(time.perf_counter() - begin)
        ratios = {
            name: statistics.median(a / b for a, b in zip(all_, taken["plain"], strict=True))
            for name, all_ in taken.items()
        }
        plain = statistics.median(taken["plain"]) / self.count / EPOCHS * 1000
        return f"plain {plain:.2f} ms, " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())

    def _ours(self, module: Classifier, options: dict[str, Any]) -> None:
        Trainer(["-*"], accelerator=self.kind, max_epochs=EPOCHS, **options).fit(module, self.data)
        if self.cuda:
            torch.cuda.synchronize()

    def _plain(self, module: Classifier) -> None:
        optimizer = module.configure_optimizers()
        for _ in range(EPOCHS):
            for x, y in self.data:
                x, y = x.to(self.kind, non_blocking=True), y.to(self.kind, non_blocking=True)
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        if self.cuda:
            torch.cuda.synchronize()


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    streams = one["args"]["stream"] != other["args"]["stream"]
    return streams and one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"]


def main() -> int:
    """Run every check, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accelerator", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=6, help="rounds of the timing; 0 leaves it out")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=1024, help="samples in a batch")
    arguments = parser.parse_args()
    cuda = arguments.accelerator == "cuda"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products of matrices come out the same each time
    if cuda and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA GPU: nothing has been checked")
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if cuda else 'the CPU'}")
    checks = Checks(arguments.accelerator, arguments.batches, arguments.width, arguments.rows)
    needs_gpu = (checks.graphs, checks.overlap, checks.no_wait, checks.memory)
    failed = 0
    for check in (checks.side_stream, *needs_gpu):
        if check in needs_gpu and not cuda:
            print(f"passed over  {check.__name__}: needs a GPU")
            continue
        try:
            print(f"holds        {check.__name__}: {check()}", flush=True)
        except Exception as error:  # the others are still to be seen
            failed += 1
            print(f"FAILED       {check.__name__}: {type(error).__name__}: {error}", flush=True)
    if arguments.rounds:
        print(f"times        {checks.times(arguments.rounds)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
