"""Which device plugin is live, and what is refused; tests/toy trains on a second device."""

import pickle
import subprocess
import sys
import textwrap

import pytest
import torch

from lightloop import PluginError, Trainer
from lightloop.testing import Probe, probe_batches
from lightloop.toolkit import Relay
from lightloop_plugins.accelerators.accelerator import Accelerator
from lightloop_plugins.accelerators.cuda import Cuda


def only(name):
    return next(plugin for plugin in Trainer(["-*"], accelerator=name).plugins)


def test_the_keyword_chooses_a_device_plugin_or_a_device_type():
    assert [plugin.name for plugin in Trainer(["-*"], accelerator="cuda").plugins] == ["cuda"]
    assert [plugin.name for plugin in Trainer(["-*"], accelerator="mps").plugins] == ["mps"]
    assert [plugin.name for plugin in Trainer(["-*"], accelerator="cpu").plugins] == ["cpu"]
    assert only("xpu:1").kind == "xpu:1"
    assert only("auto").kind == only("gpu").kind.replace("gpu", "auto") == "auto"
    live = Trainer().plugins
    assert [plugin.name for plugin in live if plugin.group == "accelerator"] == ["cpu"]
    live = Trainer(accelerator="auto").plugins
    assert [plugin.name for plugin in live if plugin.group == "accelerator"] == ["accelerator"]


def test_nonsense_is_refused_at_construction():
    with pytest.raises(ValueError, match=r"accelerator \(accelerator.kind\) must be 'auto', .*; it is 'quantum'"):
        Trainer(accelerator="quantum")
    with pytest.raises(ValueError, match=r"accelerator_index .* must be a whole number from 0; it is -1"):
        Trainer(accelerator="xpu", accelerator_index=-1)
    with pytest.raises(ValueError, match="without an index"):
        Trainer(accelerator="xpu:1", accelerator_index=0)
    with pytest.raises(ValueError, match=r"cuda_index \(cuda.index\) must be a whole number from 0"):
        Cuda(index=-1)
    with pytest.raises(TypeError, match="nothing turns that on"):
        Trainer(cuda_index=1)
    with pytest.raises(PluginError, match="both of the group 'accelerator'"):
        Trainer(["cuda"], accelerator="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "xpu", "mps"])
def test_a_device_that_is_missing_is_an_error_and_no_fallback(name):
    module = Probe()
    with pytest.raises(
        RuntimeError, match=f"accelerator='{name}' asks for device {name}:0, which this machine does not"
    ):
        Trainer(accelerator=name).fit(module, probe_batches(1))
    assert module.seen == []


def test_without_an_accelerator_auto_is_the_cpu_and_gpu_an_error():
    code = """
        import torch
        from lightloop import Trainer
        from lightloop.testing import Probe, probe_batches
        assert not torch.accelerator.is_available()
        trainer = Trainer(["-*"], accelerator="auto")
        trainer.fit(Probe(), probe_batches(1))
        assert trainer.loop.device == torch.device("cpu")
        try:
            Trainer(["-*"], accelerator="gpu").fit(Probe(), probe_batches(1))
        except RuntimeError as error:
            assert "there is the CPU alone (accelerator='cpu')" in str(error), error
        else:
            raise AssertionError("a GPU was found")
    """
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], check=True)


def test_device_plugins_pickle():
    for name in ("auto", "xpu:1", "cuda", "mps", "cpu"):
        again = pickle.loads(pickle.dumps(Trainer(["-*"], accelerator=name)))
        assert [type(plugin) for plugin in again.plugins] == [type(only(name))]
    assert isinstance(only("auto"), Accelerator)


@pytest.mark.parametrize("own", [False, True], ids=["plain", "own transfer"])
def test_on_a_machine_with_the_cpu_alone_it_leaves_the_call_chain(monkeypatch, own):
    left = []
    monkeypatch.setattr(Relay, "leave", lambda relay, plugin, *hooks: left.append((plugin.name, *hooks)))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    module = Probe()
    if own:
        module.transfer_batch_to_device = lambda batch, device: batch
    Trainer(["-*", "cpu"]).fit(module, probe_batches(1))
    assert left == ([] if own else [("cpu", "move_batch")])
