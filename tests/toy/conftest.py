"""Tests on a second device, which a process has from its first backward on or never: they run in a process of their own.

``pytest tests`` does that from tests/plugins/test_toy_device.py; by hand it is ``LIGHTLOOP_TOY_DEVICE=1 pytest tests/toy``.
"""

import os

import pytest
import torch

from lightloop.testing import toy_device

collect_ignore_glob = [] if os.environ.get("LIGHTLOOP_TOY_DEVICE") else ["test_*.py"]

if not collect_ignore_glob:
    toy_device.register()


@pytest.fixture
def toy():
    """The first of the devices, with its counts at zero."""
    toy_device.counts.clear()
    return torch.device("toy", 0)
