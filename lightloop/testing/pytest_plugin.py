"""Fixtures for plugin authors, which pytest finds by itself where Lightloop is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lightloop.testing import Probe, Recorder, TinyClassifier


@pytest.fixture
def recorder() -> Recorder:
    """A plugin that writes down the hooks of a run: ``Trainer([recorder, ...])``, then ``recorder.events``."""
    from lightloop.testing import Recorder

    return Recorder()


@pytest.fixture
def tiny_classifier() -> TinyClassifier:
    """A small classifier, with the same weights each time."""
    import torch

    from lightloop.testing import TinyClassifier

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TinyClassifier()


@pytest.fixture
def classification_data() -> list[Any]:
    """Six batches of eight samples for ``tiny_classifier``."""
    from lightloop.testing import classification_batches

    return classification_batches()


@pytest.fixture
def probe() -> Probe:
    """A module of one weight that tells which batches were in which step."""
    from lightloop.testing import Probe

    return Probe()


@pytest.fixture
def probe_data() -> list[Any]:
    """The batches 1 to 10 for ``probe``."""
    from lightloop.testing import probe_batches

    return probe_batches()
