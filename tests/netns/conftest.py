"""Tests on two hosts, which are network namespaces of this one: make test-netns."""

import os

collect_ignore_glob = [] if os.environ.get("LIGHTLOOP_NETNS") else ["test_*.py"]
