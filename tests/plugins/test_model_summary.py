import pytest
import torch
from torch import nn

from lightloop import Module, Trainer
from lightloop.testing import TinyClassifier, classification_batches
from lightloop_plugins.model_summary import short, summarize

BARE = ["-*", "model_summary"]


class Deep(TinyClassifier):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.net[0].requires_grad_(False)
        self.example_input_array = torch.zeros(5, 4)

    def forward(self, x):
        return self.norm(super().forward(x))


TOP = """\
name  type         parameters  trainable  in   out
net   Sequential   67          27         5×4  5×3
norm  BatchNorm1d  6           6          5×3  5×3
Deep: 73 parameters (0.000292 MB), 33 trainable
"""
FULL = """\
name   type         parameters  trainable  in   out
net    Sequential   67          27         5×4  5×3
net.0  Linear       40          0          5×4  5×8
net.1  ReLU         0           0          5×8  5×8
net.2  Linear       27          27         5×8  5×3
norm   BatchNorm1d  6           6          5×3  5×3
Deep: 73 parameters (0.000292 MB), 33 trainable
"""


@pytest.mark.parametrize(("depth", "table"), [("top", TOP), (1, TOP), ("full", FULL), (-1, FULL), (2, FULL)])
def test_the_table_is_printed_once(depth, table, capsys):
    Trainer(BARE, weights_summary=depth, max_epochs=2).fit(Deep(), classification_batches(2))
    assert capsys.readouterr() == ("", table)


@pytest.mark.parametrize("off", [None, False, 0])
def test_off(off, capsys):
    Trainer(["-*"], weights_summary=off).fit(Deep(), classification_batches(1))
    assert capsys.readouterr().err == ""
    assert Trainer(weights_summary=off).plugin("model_summary") is None


@pytest.mark.parametrize("nonsense", ["deep", -2])
def test_nonsense_is_refused(nonsense):
    with pytest.raises((TypeError, ValueError), match="weights_summary"):
        Trainer(weights_summary=nonsense)


def test_it_leaves_no_trace():
    module = Deep()
    module.net.eval()
    modes, before = [part.training for part in module.modules()], torch.get_rng_state()
    mean = module.norm.running_mean.clone()
    summarize(module, -1)
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(module.norm.running_mean, mean)
    assert not any(part._forward_hooks for part in module.modules())


def test_an_example_that_does_not_fit_is_told_of():
    module = Deep()
    module.example_input_array = torch.zeros(5, 7)
    with pytest.warns(UserWarning, match="example_input_array does not go through Deep"):
        summarize(module)
    assert all(part.training for part in module.modules())


class Pair(Module):
    def __init__(self):
        super().__init__()
        self.a, self.shared = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)
        self.again = self.shared
        self.lazy = nn.LazyLinear(2)

    def forward(self, x, scale):
        return self.a(x)[0] * scale


@pytest.mark.parametrize(
    "example", [(torch.zeros(1, 4, 2), torch.ones(())), {"x": torch.zeros(1, 4, 2), "scale": torch.ones(())}]
)
def test_several_inputs_nested_outputs_shared_and_lazy_parameters(example):
    module = Pair()
    module.example_input_array = example
    lines = summarize(module).splitlines()
    assert [line.split() for line in lines[1:-1]] == [
        ["a", "LSTM", "84", "84", "1×4×2", "(1×4×3,", "(1×1×3,", "1×1×3))"],
        ["shared", "Linear", "12", "12"],
        ["lazy", "LazyLinear", "0", "0"],
    ]
    assert lines[-1] == "Pair: 96 parameters (0.000384 MB), 96 trainable"


def test_short_numbers():
    assert [short(number) for number in (0, 999, 1000, 1_234_567, 7 * 10**9)] == ["0", "999", "1 K", "1.23 M", "7 B"]


def test_the_old_name():
    with pytest.warns(DeprecationWarning, match="weights_summary"):
        assert Trainer(max_depth=2).weights_summary == 2
