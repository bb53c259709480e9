"""Tests that need Horovod, which has an environment of its own: make test-horovod."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("horovod") else ["test_*.py"]
