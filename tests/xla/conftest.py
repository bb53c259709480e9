"""Tests that need PyTorch/XLA, which has an environment of its own: make test-xla."""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch_xla") else ["test_*.py", "spmd/test_*.py"]

if not collect_ignore_glob:
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
