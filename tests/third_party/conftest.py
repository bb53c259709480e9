"""Tests that need the distributions of examples/third_party, which have an environment of their own: make test-third-party."""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("lightloop_wandb") else ["test_*.py"]

if not collect_ignore_glob:
    os.environ |= {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
