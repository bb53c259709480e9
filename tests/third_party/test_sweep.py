"""The example of a sweep, with what pip has installed."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep_optuna.py"


def test_trials_are_pruned_and_the_best_is_found(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--trials", "8", "--epochs", "4"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    head, *rows, _, best = done.stdout.splitlines()
    assert head.split() == ["trial", "accuracy", "epochs", "hyperparameters"]
    assert len(rows) == 8
    pruned = [row for row in rows if row.endswith(" pruned")]
    assert pruned
    assert all(int(row.split()[2]) < 4 for row in pruned)
    finished = [float(row.split()[1].rstrip("%")) for row in rows if row not in pruned]
    assert f"the best of 8 trials: {max(finished):.2f}% with" in best
    assert max(finished) > 80
