"""Tests that need Lightning, which is in an environment of its own: make test-lightning."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("lightning") else ["test_*.py", "models.py"]
