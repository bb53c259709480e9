"""Kill a language model in the midst of its training, let it go on, and compare it with one that nobody killed.

    python examples/kill_and_resume.py [--steps 300]

Three runs of char_lm.py: one is killed with SIGKILL between two checkpoints, inside an epoch of shuffled batches that are
cut for truncated back-propagation; one goes on from what it left; one goes through. It ends with whether weights and
metrics of the last two are equal to the last bit.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


def run(folder, name, steps, *more):
    """One process of char_lm.py; what it printed, and how it ended."""
    script = Path(__file__).with_name("char_lm.py")
    command = [sys.executable, script, "--steps", str(steps), "--dir", folder, "--name", name, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.splitlines(), done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--characters", default="400000")
    arguments = parser.parse_args()
    size = ("--characters", arguments.characters)

    with tempfile.TemporaryDirectory() as folder:
        printed, ended = run(folder, "killed", arguments.steps, *size, "--kill-at", str(arguments.steps * 6 // 10))
        assert ended == -signal.SIGKILL, ended
        print(printed[-1])
        outcomes = []
        for name, words in (("killed", "gone on"), ("whole", "in one go")):
            printed, ended = run(folder, name, arguments.steps, *size)
            assert ended == 0, ended
            outcomes.append([line for line in printed if line.startswith(("after", "sha256"))])
            print(f"{words}: {outcomes[-1][0]}; {outcomes[-1][1][:40]}…")
        rows = [next(Path(folder, name).glob("*/metrics.csv")).read_text() for name in ("killed", "whole")]
    weights_equal, rows_equal = outcomes[0] == outcomes[1], rows[0] == rows[1]
    print(f"weights equal to the last bit: {weights_equal}; rows of metrics.csv equal: {rows_equal}")
    return 0 if weights_equal and rows_equal else 1


if __name__ == "__main__":
    sys.exit(main())
