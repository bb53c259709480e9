import torch
from lightloop_noise import Noise

from lightloop import Trainer
from lightloop.testing import PluginContract, assert_order


class TestContract(PluginContract):
    plugin = "noise"
    options = {"eta": 0.01}  # noqa: RUF012  # as in the contract, nobody changes it


def test_it_stands_behind_clipping_however_they_are_listed():
    clip = Trainer(["-*"], gradient_clip_val=1.0).plugins[0]
    assert_order([Noise(eta=0.1), clip], "clip", "noise")


def test_an_option_makes_it_live():
    assert [plugin.name for plugin in Trainer(["-*"], noise_eta=0.5).plugins] == ["noise"]
    assert Trainer(["-*"]).plugins == []


def test_the_noise_is_that_of_the_formula(probe, probe_data):
    Trainer(["-*", Noise(eta=0.04, gamma=1.0)]).fit(probe, probe_data[:2])
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn((), generator=generator) for _ in range(2))
    expected = -(1 + 0.2 * first) - (2 + (0.04 / 2) ** 0.5 * second)
    assert torch.allclose(probe.w, expected)
