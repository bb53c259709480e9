"""What can be said of the horovod strategy where Horovod is not installed; tests/horovod has the rest."""

import pickle
from importlib.util import find_spec

import pytest

from lightloop import Trainer
from lightloop.testing import Probe, probe_batches


@pytest.mark.skipif(find_spec("horovod") is not None, reason="Horovod is installed")
def test_without_horovod_the_error_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install --no-build-isolation 'lightloop\[horovod\]'"):
        Trainer(strategy="horovod").fit(Probe(), probe_batches(1))


def test_it_takes_the_place_of_the_default_strategy_and_pickles():
    live = [plugin for plugin in Trainer(strategy="horovod").plugins if plugin.group == "strategy"]
    assert [plugin.name for plugin in pickle.loads(pickle.dumps(live))] == ["horovod"]


def test_nonsense_is_refused_at_construction():
    with pytest.raises(TypeError, match=r"horovod_compression \(horovod.compression\) must be"):
        Trainer(strategy="horovod", horovod_compression="zip")
    with pytest.raises(TypeError, match="nothing turns that on"):
        Trainer(horovod_scale_lr=True)
