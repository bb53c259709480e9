"""Tests that need Ray and Spark, which have an environment of their own: make test-ray."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") and find_spec("pyspark") else ["test_*.py"]
