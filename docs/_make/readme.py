"""Write the list of plugins in the README anew, from the plugins themselves; pictures.py does so too."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

plugins = import_module("lightloop_reference").plugins

MARK = "<!-- plugins -->"
KINDS = {
    "how long": (
        "duration",
        "time_limit",
        "early_stopping",
        "limits",
        "overfit",
        "fast_dev_run",
        "signals",
        "interrupt",
    ),
    "gradients and steps": (
        *("accumulate", "clip", "grad_norm", "nonfinite", "nonfinite_async", "terminate_on_nan", "detect_anomaly"),
        *("precision", "tbptt", "optimizer_frequencies", "toggle", "manual_optimization", "shared_parameters"),
        *("split_on_oom", "lr_schedule", "lr_find", "batch_size_find", "ema", "swa"),
        *("compile", "compiled_module", "cuda_graphs", "fused"),
    ),
    "data and evaluation": (
        "validation",
        "read_ahead",
        "reload_data",
        "set_epoch",
        "seed",
        "shard_data",
        "lockstep",
        "outputs",
        "whole_batches",
        "pin_memory",
    ),
    "what is kept and shown": (
        *("checkpoint", "resume", "run_dir", "csv", "tensorboard", "log_every", "lr_monitor", "running_loss"),
        *("progress", "model_summary", "throughput", "device_stats", "profiler", "trace"),
    ),
    "your own code": (
        "callbacks",
        "module_hooks",
        "old_names",
        "familiar_names",
        "lightning",
        "lightning_data",
        "lightning_epoch_end",
    ),
}


def listing():
    """A table with a row for each kind of plugin; devices and strategies are a kind by their group."""
    found = plugins()
    kinds = dict(KINDS)
    machines = [
        name
        for name, plugin in found.items()
        if plugin.group in ("accelerator", "strategy") or name in ("devices", "slurm")
    ]
    kinds["devices and processes"] = tuple(machines)
    listed = {name for names in kinds.values() for name in names}
    if rest := [name for name in found if name not in listed]:
        kinds["more"] = tuple(rest)
    lines = ["| | |", "|---|---|"]
    for kind, names in kinds.items():
        lines.append(f"| {kind} | {', '.join(f'`{name}`' for name in names if name in found)} |")
    return "\n".join(lines)


def main():
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    parts = text.split(MARK)
    assert len(parts) == 3
    readme.write_text(f"{parts[0]}{MARK}\n\n{listing()}\n\n{MARK}{parts[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
