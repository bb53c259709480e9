"""Draw the pictures of the documentation, from real runs: make pictures."""

from __future__ import annotations

import csv
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from html import escape
from pathlib import Path

import matplotlib
import readme
import torch

from lightloop import Hooks, Trainer
from lightloop.host.order import places
from lightloop.testing import Recorder, TinyClassifier, classification_batches

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "_pictures"
TELLS, ANSWERS, INK, PALE = "#4878a8", "#d08030", "#333333", "#e8e8e8"
FONT = 'font-family="Helvetica, Arial, sans-serif"'


def svg(width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT} font-size="12">'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>\n"])


def text(x, y, words, more=""):
    return f'<text x="{x}" y="{y}" fill="{INK}" {more}>{escape(words)}</text>'


def timeline():
    """Which events each batch of a run meets: three batches, windows of two."""
    recorder = Recorder()
    data = classification_batches(batches=3)
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    Trainer(["-*", recorder], **options).fit(TinyClassifier(), data)
    events = recorder.events
    begins = [index for index, name in enumerate(events) if name == "move_batch"]
    end = events.index("after_epoch")
    rows = [events[begin:stop] for begin, stop in zip(begins, [*begins[1:], end], strict=True)]
    hooks = [name for name in vars(Hooks) if any(name in row for row in rows)]
    left, top, cell = 130, 130, 34
    parts = []
    for column, name in enumerate(hooks):
        x = left + column * cell + cell / 2 + 4
        parts.append(text(x, top - 10, name, f'transform="rotate(-50 {x} {top - 10})"'))
    for number, row in enumerate(rows):
        y = top + number * cell
        parts.append(text(62, y + cell / 2 + 4, f"batch {number}"))
        for column, name in enumerate(hooks):
            operation = getattr(Hooks, name).lightloop_spec["firstresult"]
            fill = PALE if name not in row else ANSWERS if operation else TELLS
            x = left + column * cell
            parts.append(f'<rect x="{x + 3}" y="{y + 3}" width="{cell - 6}" height="{cell - 6}" rx="4" fill="{fill}"/>')
    for first, last, words in ((0, 1, "window"), (2, 2, "window")):
        above, below = top + first * cell + 5, top + (last + 1) * cell - 5
        parts.append(f'<path d="M54 {above} H46 V{below} H54" fill="none" stroke="{INK}"/>')
        middle = (above + below) / 2
        parts.append(text(36, middle, words, f'text-anchor="middle" transform="rotate(-90 36 {middle})" font-size="9"'))
    y = top + 3 * cell + 28
    for x, fill, words in ((left, TELLS, "tells"), (left + 90, ANSWERS, "asks"), (left + 180, PALE, "not called")):
        parts.append(
            f'<rect x="{x}" y="{y - 11}" width="14" height="14" rx="3" fill="{fill}"/>' + text(x + 20, y, words)
        )
    return svg(left + len(hooks) * cell + 80, y + 16, parts)


def order():
    """Who is called in before_step of a run, and who declared what: an arc for each declaration."""
    trainer = Trainer(track_grad_norm=2, nonfinite="skip_step", terminate_on_nan=True, gradient_clip_val=1.0)
    block = trainer.explain().split("\nbefore_step\n")[1].split("\nstep\n")[0]
    names = re.findall(r"^\s+\d+\. ([\w-]+)", block, flags=re.MULTILINE)
    reasons = {pair: why for pair, why in places(trainer.plugins).items() if set(pair) <= set(names)}
    gap, base = 120, 26 * len(names) - 20
    parts, where = [], {name: 80 + index * gap for index, name in enumerate(names)}
    for first, second in sorted(reasons, key=lambda pair: where[pair[1]] - where[pair[0]]):
        a, b = where[first] + 14, where[second] - 14
        height = base - 20 - (where[second] - where[first]) / gap * 26
        by = reasons[first, second].partition(" ")[0]
        colour = TELLS if by == second else ANSWERS
        parts.append(
            f'<path d="M{a} {base - 16} C{a} {height} {b} {height} {b} {base - 18}" fill="none" stroke="{colour}" '
            'stroke-width="1.4" marker-end="url(#end)"/>'
        )
    for index, name in enumerate(names, 1):
        x = where[name]
        parts.append(f'<rect x="{x - 52}" y="{base - 15}" width="104" height="30" rx="5" fill="{PALE}"/>')
        parts.append(text(x, base + 4, f"{index}. {name}", 'text-anchor="middle"'))
    mark = f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/>'
    parts.insert(
        0,
        f'<defs><marker id="end" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">{mark}</marker></defs>',
    )
    y = base + 50
    parts.append(
        text(
            30,
            y,
            'before_step of Trainer(track_grad_norm=2, nonfinite="skip_step", terminate_on_nan=True, gradient_clip_val=1.0)',
        )
    )
    for x, colour, words in (
        (30, TELLS, "declared by the later one: after"),
        (290, ANSWERS, "declared by the earlier one: before"),
    ):
        parts.append(f'<path d="M{x} {y + 18} h26" stroke="{colour}" stroke-width="2"/>' + text(x + 34, y + 22, words))
    return svg(80 + gap * len(names), y + 36, parts)


def digits(folder):
    """Run the example in a terminal of its own; give its metrics, and what was on the screen."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "130", "TERM": "xterm"}
    program = [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", "12", "--dir", str(folder)]
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 130, 0, 0))
    process = subprocess.Popen(program, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    assert process.wait() == 0, seen.decode()
    (metrics,) = folder.rglob("metrics.csv")
    return metrics, seen.decode()


def screen(seen):
    """The table, the bars as they stood when they were closed, and one in the middle of its epoch."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", seen).replace("\r\n", "\n")
    lines = []
    for line in plain.split("\n"):
        drawn = [part.rstrip() for part in line.split("\r") if part.strip()]
        if drawn:
            lines.append(drawn)
    table = [line[-1] for line in lines if re.match(r"name |net |Digits", line[-1])]
    bars = [part for line in lines for part in line if part.startswith("epoch")]
    done = [next(part for part in reversed(bars) if part.startswith(f"epoch {number}/")) for number in (1, 2)]
    open_bars = [part for part in bars if part.startswith("epoch 3/") and "100%" not in part and " 0%" not in part]
    return "\n".join([*table, *done, open_bars[-1]]) + "\n"


def curves(metrics):
    with open(metrics, newline="") as file:
        rows = list(csv.DictReader(file))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    for axes, names in ((left, ("train_loss", "val_loss")), (right, ("val_accuracy",))):
        for name in names:
            points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
            axes.plot(
                *zip(*points, strict=True), label=name, marker="." if name.startswith("val") else None, linewidth=1
            )
        axes.set_xlabel("step")
        axes.legend()
        axes.grid(alpha=0.3)
    left.set_yscale("log")
    figure.tight_layout()
    figure.savefig(PICTURES / "curves.png", dpi=100)


def main():
    torch.manual_seed(0)
    PICTURES.mkdir(exist_ok=True)
    readme.main()
    (PICTURES / "timeline.svg").write_text(timeline())
    (PICTURES / "order.svg").write_text(order())
    with tempfile.TemporaryDirectory() as folder:
        metrics, seen = digits(Path(folder))
        curves(metrics)
        (PICTURES / "screen.txt").write_text(screen(seen))


if __name__ == "__main__":
    main()
