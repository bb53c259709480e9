import pytest
import torch
from lightloop_noise import Noise

from lightloop import Module, Trainer
from lightloop.testing import PluginContract, assert_order, run_ranks, values_of


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


class Weights(Module):
    """Weights with a gradient of 0, which become what the noise makes of them; FSDP shards them."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(4, 6)
        self.start = {name: value.clone() for name, value in self.w.state_dict().items()}

    def training_step(self, batch):
        return self.w(batch).sum() * 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def noise_of(**options):
    """What two steps of one window of three batches, and of one of two, have added to the weights."""
    torch.manual_seed(0)
    module = Weights()
    precision = {"precision_init_scale": 1024.0} if options.get("precision") == "16-mixed" else {}
    Trainer(["-*", Noise(eta=0.04, gamma=1.0)], accumulate_grad_batches=3, **options, **precision).fit(
        module, [torch.ones(2, 4)] * 5
    )
    return [module.start[name] - value.float() for name, value in module.w.state_dict().items()]


def drawn():
    generator = torch.Generator().manual_seed(0)
    steps = [[torch.randn(shape, generator=generator) for shape in ((6, 4), (6,))] for _ in range(2)]
    return [0.2 * first + (0.04 / 2) ** 0.5 * second for first, second in zip(*steps, strict=True)]


TOLERANCES = {32: 1e-6, 64: 1e-6, "bf16-mixed": 1e-6, "16-mixed": 1e-6, "16-true": 2e-3, "bf16-true": 2e-2}


@pytest.mark.parametrize("precision", TOLERANCES)
def test_it_is_that_of_the_formula_in_every_precision(precision):
    within = TOLERANCES[precision]
    torch.testing.assert_close(noise_of(precision=precision), drawn(), rtol=0, atol=within)


def on_ranks():
    return [
        noise_of(strategy=strategy, precision=precision)
        for strategy in ("ddp", "fsdp")
        for precision in (32, "bf16-mixed", "16-mixed")
    ]


def test_it_is_that_of_the_formula_under_every_strategy():
    for ranks in values_of(run_ranks(on_ranks, 2)):
        for noise in ranks:
            torch.testing.assert_close(noise, drawn(), rtol=0, atol=1e-6)
