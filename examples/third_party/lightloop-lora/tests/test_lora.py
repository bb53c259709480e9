import os

import pytest
import torch
from lightloop_lora import Lora, adapt, linears, load_adapters, merge
from torch import nn

from lightloop import Module, Trainer
from lightloop.cli.front import main
from lightloop.testing import PluginContract
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage.local import LocalFolder

ONLY = ["-*", "checkpoint", "resume", "run_dir", "duration"]
ADAPTERS = [f"{layer}.lora_{part}" for layer in ("body.0", "head") for part in ("a", "b", "scale")]


class TestContract(PluginContract):
    plugin = "lora"
    options = {"rank": 2}  # noqa: RUF012  # as in the contract, nobody changes it


class Net(Module):
    """A base that is large beside its adapters; dropout makes the random numbers count."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Dropout(0.2))
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 64)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))

    def training_step(self, batch):
        return (self(batch) - 1).square().mean()

    def validation_step(self, batch):
        self.log("loss", self.training_step(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """What a run writes beside its checkpoints is not left here."""
    monkeypatch.chdir(tmp_path)


def data():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 16, generator=generator) for _ in range(6)]


def fit(folder, module=None, **options):
    torch.manual_seed(3)
    module = Net() if module is None else module
    Trainer(ONLY, **{"lora_rank": 2, "checkpoint_dir": folder, "max_epochs": 2, **options}).fit(module, data())
    return module


def newest(folder):
    folder = LocalFolder(folder)
    return folder.load(folder.names()[-1])[1]["module"]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_only_the_adapters_are_trained(tmp_path):
    module, base = fit(tmp_path), Net().state_dict()
    after = module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in base.items())
    assert sorted(after.keys() - base.keys()) == sorted(ADAPTERS)
    assert all(after[name].abs().sum() > 0 for name in ADAPTERS)
    assert all(parameter.requires_grad for parameter in module.parameters())  # as it was before the run


def test_only_the_adapters_are_saved(tmp_path):
    fit(tmp_path / "adapters")
    Trainer(ONLY, checkpoint_dir=tmp_path / "whole", max_epochs=2).fit(Net(), data())
    state = newest(tmp_path / "adapters")
    assert sorted([*state["parameters"], *state["buffers"]]) == sorted(ADAPTERS)
    small, large = (sum(f.stat().st_size for f in (tmp_path / which).rglob("*")) for which in ("adapters", "whole"))
    assert small < large / 5


def test_a_run_is_a_loop_by_hand(tmp_path):
    """One step of gradient descent on the factors, written out."""

    class Plain(Net):
        def __init__(self):
            super().__init__()
            self.body[2] = nn.Identity()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    ours = fit(tmp_path, Plain(), max_steps=2, max_epochs=None, lora_targets=["head"], lora_alpha=6.0)
    base = Plain()
    generator = torch.Generator().manual_seed(0)
    a = ((torch.rand(2, 256, generator=generator) * 2 - 1) / 16).requires_grad_()
    b = torch.zeros(64, 2, requires_grad=True)
    for batch in data()[:2]:
        weight = base.head.weight.detach() + 3.0 * b @ a
        out = nn.functional.linear(base.norm(base.body(batch)), weight, base.head.bias)
        for factor, grad in zip((a, b), torch.autograd.grad((out - 1).square().mean(), (a, b)), strict=True):
            factor.data -= 0.1 * grad
    assert torch.allclose(ours.head.lora_b, b, atol=1e-6)
    assert torch.allclose(ours.head.lora_a, a, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"async_save": True}, {"lora_also": ["norm.*"]}], ids=str)
def test_a_resumed_run_is_the_whole_run(tmp_path, options):
    whole = fit(tmp_path / "whole", **options)
    fit(tmp_path / "parts", max_steps=8, **options)
    assert same(whole, fit(tmp_path / "parts", resume=tmp_path / "parts", **options))


def test_another_base_is_refused(tmp_path):
    fit(tmp_path, max_steps=3)
    with pytest.raises(CheckpointError, match="is partial: it lacks 6 tensors"):
        fit(tmp_path, Net(seed=1), resume=tmp_path)
    with pytest.raises(CheckpointError, match="trained over other values than Net has"):
        load_adapters(Net(seed=1), tmp_path)


def test_a_part_beside_them_is_trained_and_saved(tmp_path):
    module = fit(tmp_path, lora_targets=["body.*"], lora_also=["head.*"])
    state = newest(tmp_path)
    assert sorted([*state["parameters"], *state["buffers"]]) == ["body.0.lora_a", "body.0.lora_b", "body.0.lora_scale",
                                                               "head.bias", "head.weight"]  # fmt: skip
    assert not torch.equal(module.head.weight, Net().head.weight)


def test_merged_it_is_a_plain_module_that_computes_the_same(tmp_path):
    module = fit(tmp_path).eval()
    x = data()[0]
    adapted = module(x)
    assert not torch.allclose(adapted, Net().eval()(x), atol=1e-3)
    assert torch.allclose(merge(module)(x), adapted, atol=1e-5)
    assert list(module.state_dict()) == list(Net().state_dict())


@pytest.mark.parametrize("way", ["checkpoint", "export"])
def test_what_was_saved_goes_onto_a_fresh_base(tmp_path, way, capsys):
    trained = fit(tmp_path / "run")
    place = tmp_path / "run"
    if way == "export":
        place = tmp_path / "adapters.safetensors"
        assert main(["checkpoint", "export", str(tmp_path / "run"), str(place)]) == 0
        assert "6 tensors are in neither" in capsys.readouterr().out
        assert os.path.getsize(place) < 20_000
    assert same(load_adapters(Net(), place), trained)


def test_an_evaluation_takes_them_as_well(tmp_path):
    user = Trainer(ONLY, lora_rank=2, checkpoint_dir=tmp_path, max_epochs=1)
    module = Net()
    user.fit(module, data())
    wanted = user.validate(module, data())
    other = Trainer(ONLY, lora_rank=2)
    assert other.validate(Net(), data(), resume=tmp_path) == wanted


def test_what_cannot_be_is_refused():
    with pytest.raises(
        ValueError, match=r"lora_targets .* must be names of Linear layers.*body.0, head; it is \['tail'\]"
    ):
        Trainer(["-*"], lora_rank=2, lora_targets=["tail"]).fit(Net(), data())

    class Early(Net):
        def __init__(self):
            super().__init__()
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

        def configure_optimizers(self):
            return self.optimizer

    with pytest.raises(ValueError, match="no optimizer has the adapters"):
        Trainer(["-*"], lora_rank=2).fit(Early(), data())
    with pytest.raises(ValueError, match="must be a whole number from 1"):
        Lora(rank=0)


def test_a_second_run_goes_on_with_the_adapters_that_are_there(tmp_path):
    module = fit(tmp_path / "one")
    names = list(module.state_dict())
    fit(tmp_path / "two", module)
    assert list(module.state_dict()) == names
    layer = linears(Net())["head"]
    adapt(layer, 3, 1.0)
    assert layer.lora_a.shape == (3, 256)
