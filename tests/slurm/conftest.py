"""Tests on a real cluster of SLURM, which they start on this machine: make test-slurm."""

import os

collect_ignore_glob = [] if os.environ.get("LIGHTLOOP_SLURM") else ["test_*.py"]
