"""What can be said of XLA where PyTorch/XLA is not installed; tests/xla has the rest."""

import pickle
from importlib.util import find_spec

import pytest

from lightloop import PluginError, Trainer
from lightloop.testing import Probe, probe_batches

XLA = {"accelerator": "xla", "strategy": "xla_spmd"}


@pytest.mark.skipif(find_spec("torch_xla") is not None, reason="PyTorch/XLA is installed")
@pytest.mark.parametrize("options", [{"accelerator": "xla"}, XLA])
def test_without_pytorch_xla_the_error_says_what_to_install(options):
    with pytest.raises(ImportError, match=r"pip install 'lightloop\[xla\]', with torch 2.9"):
        Trainer(["-*"], **options).fit(Probe(), probe_batches(1))


def test_they_are_chosen_by_name_and_pickle():
    live = pickle.loads(pickle.dumps(Trainer(["-*"], **XLA).plugins))
    assert [plugin.name for plugin in live if plugin.group] == ["xla", "xla_spmd"]


def test_spmd_needs_the_device_and_comes_after_it():
    with pytest.raises(PluginError, match="'xla_spmd' requires 'xla'"):
        Trainer(strategy="xla_spmd")
    live = Trainer(["-*"], **XLA, devices=2, precision=64).plugins
    assert [plugin.name for plugin in live] == ["xla", "devices", "precision", "xla_spmd"]


@pytest.mark.parametrize(
    "old", [{"tpu_cores": 1}, {"tpu_cores": [0]}, {"num_tpu_cores": "1"}, {"use_tpu": True}], ids=str
)
def test_what_it_was_called_warns_and_works(old):
    with pytest.warns(DeprecationWarning, match="is now"):
        live = Trainer(["-*"], **old).plugins
    assert [plugin.name for plugin in live] == ["xla"]


def test_several_cores_are_a_strategy():
    with pytest.warns(
        DeprecationWarning, match="'tpu_cores' is now accelerator='xla', and for all cores of the machine"
    ):
        trainer = Trainer(["-*"], tpu_cores=8)
    with pytest.raises(
        ValueError, match=r"tpu_cores=8 is now accelerator='xla', and for all .* strategy='xla_spmd' as well"
    ):
        trainer.fit(Probe(), probe_batches(1))
    with pytest.warns(DeprecationWarning, match="tpu_cores"):
        live = Trainer(["-*"], tpu_cores=8, strategy="xla_spmd").plugins
    assert [plugin.name for plugin in live] == ["xla", "xla_spmd"]
    assert "xla" not in [plugin.name for plugin in Trainer(tpu_cores=0).plugins]


def test_nonsense_is_refused_at_construction():
    with pytest.raises(ValueError, match=r"xla_shapes \(xla.shapes\) must be a whole number from 1; it is 0"):
        Trainer(accelerator="xla", xla_shapes=0)
