"""Plugins say which tensors checkpoints have, and do what they must around a save; what is left out is never lost unseen."""

import functools
import logging

import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.cli.front import main
from lightloop.testing.ranks import run_ranks, values_of
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.checkpoint.weights.load import load_weights, read_weights
from tests.checkpoint.sharded_rig import FSDP, life_of_a_head

QUIET = ["-progress", "-model_summary"]
HEAD = ["head.weight", "head.bias"]


class Net(Module):
    """A frozen base, tied and with a buffer, and a head that is trained."""

    def __init__(self, seed=0, norm=False):
        super().__init__()
        torch.manual_seed(seed)
        self.base, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.again = self.base
        self.register_buffer("scale", torch.rand(()) + 1)
        self.register_buffer("hidden", torch.rand(3), persistent=False)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.head(nn.functional.dropout(self.norm(self.again(x)) * self.scale, 0.25, self.training))

    def training_step(self, batch):
        loss = self(batch).square().mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.1)


class Heads(Plugin):
    """Saves what ``keep`` says: the head alone."""

    name = "heads"
    keep = staticmethod(lambda name: name.startswith(("head", "norm")))

    @hookimpl(optionalhook=True)
    def saved_tensors(self, loop, names):
        return [name for name in names if self.keep(name)]


def data():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 8, generator=generator) for _ in range(6)]


def fit(folder, module=None, *plugins, **options):
    torch.manual_seed(5)
    module = Net() if module is None else module
    user = Trainer([*QUIET, *(plugins or (Heads(),))], checkpoint_dir=folder, **{"max_epochs": 2, **options})
    user.fit(module, data())
    return module


def newest(folder):
    folder = LocalFolder(folder)
    return folder.load(folder.names()[-1])


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("options", [{}, {"async_save": True}, {"save_weights_only": True}], ids=str)
def test_only_what_is_asked_for_is_saved(tmp_path, options):
    module = fit(tmp_path, **options)
    manifest, state = newest(tmp_path)
    found = state["module"].get("weights", state["module"].get("parameters"))
    assert sorted(found) == sorted(HEAD)
    assert all(torch.equal(found[name], module.state_dict()[name]) for name in HEAD)
    assert state["module"].get("buffers", {}) == {}
    assert sorted(state["module"]["left_out"]) == ["base.bias", "base.weight", "hidden", "scale"]
    assert manifest.body["partial"]["left_out"] == ["base.bias", "base.weight", "hidden", "scale"]
    whole = fit(tmp_path / "whole", None, Plain(), **options)
    manifest, state = newest(tmp_path / "whole")
    assert same(whole, module)
    assert "left_out" not in state["module"]
    assert "partial" not in manifest.body


class Plain(Plugin):
    """Answers nothing."""

    name = "plain"

    @hookimpl(optionalhook=True)
    def saved_tensors(self, names):
        return None


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("steps", [3, 6, 8])
def test_a_resumed_run_is_the_whole_run(tmp_path, threaded, steps):
    whole = fit(tmp_path / "whole", async_save=threaded)
    fit(tmp_path / "parts", max_steps=steps, async_save=threaded)
    resumed = fit(tmp_path / "parts", resume=tmp_path / "parts", async_save=threaded)
    assert same(whole, resumed)
    one, other = newest(tmp_path / "whole")[1], newest(tmp_path / "parts")[1]
    assert one["module"]["left_out"] == other["module"]["left_out"]


@pytest.mark.parametrize("name", ["base.weight", "scale", "hidden"])
def test_resuming_over_another_base_is_refused_and_changes_nothing(tmp_path, name):
    fit(tmp_path, max_steps=3)
    module = Net()
    with torch.no_grad():
        module.get_parameter(name).add_(0.5) if "base" in name else module.get_buffer(name).add_(0.5)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=f"is partial: it lacks 4 .* 1 of them have now: {name}. Build the module"
    ):
        fit(tmp_path, module, resume=tmp_path)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_run_may_save_more_than_before_and_goes_on(tmp_path):
    """A second part of a run that leaves nothing out has whole checkpoints again."""
    fit(tmp_path, max_steps=3)
    with pytest.warns(UserWarning, match="plugins that are not live now: heads"):
        fit(tmp_path, None, Plain(), resume=tmp_path)
    assert "left_out" not in newest(tmp_path)[1]["module"]


class Thaws(Net):
    def on_train_epoch_start(self):
        if self.loop.epoch == 1:
            self.base.requires_grad_(True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_what_is_trained_cannot_be_left_out(tmp_path):
    module = Net()
    module.base.requires_grad_(True)
    with pytest.raises(CheckpointError, match=r"leaves out base.weight, which is being trained"):
        fit(tmp_path, module)
    assert LocalFolder(tmp_path).names() == []  # it is seen before the first batch
    with pytest.raises(CheckpointError, match=r"leaves out base.weight, which is being trained"):
        fit(tmp_path, Thaws())


@pytest.mark.parametrize("way", ["batch norm", "in a hook", "another tensor"])
def test_what_changes_cannot_be_left_out(tmp_path, way):
    class Writes(Net):
        def on_train_batch_end(self):
            if way == "in a hook":
                self.scale.mul_(1.5)
            elif way == "another tensor":
                self.scale = self.scale * 1.5

    class OnlyTheHead(Heads):
        keep = staticmethod(lambda name: name.startswith(("head", "norm.weight", "norm.bias")))

    name = "norm.running_mean" if way == "batch norm" else "scale"
    with pytest.raises(
        CheckpointError, match=f"{name} is left out by saved_tensors and has changed since this run began"
    ):
        fit(tmp_path, Writes(norm=way == "batch norm"), OnlyTheHead())


def test_what_is_written_anew_with_the_same_values_is_the_same(tmp_path):
    class Restores(Net):
        def on_train_batch_end(self):
            self.scale.copy_(self.scale.clone())

    fit(tmp_path, Restores())
    assert newest(tmp_path)[0].step == 12


def test_a_name_that_does_not_exist_is_refused(tmp_path):
    class Odd(Plugin):
        name = "odd"

        @hookimpl(optionalhook=True)
        def saved_tensors(self):
            return ["head.wieght"]

    with pytest.raises(CheckpointError, match=r"answers with head.wieght, which is no parameter or buffer"):
        fit(tmp_path, None, Odd())


@pytest.mark.parametrize("options", [{}, {"save_weights_only": True}], ids=str)
def test_weights_alone_go_over_the_same_base_and_say_so_of_another(tmp_path, options, caplog):
    trained = fit(tmp_path, **options)
    assert sorted(read_weights(tmp_path)[0]) == sorted(HEAD)
    module = Net()
    with caplog.at_level(logging.INFO, "lightloop"):
        load_weights(module, tmp_path)
    assert same(module, trained)
    assert (
        "is partial: it lacks 4 tensors of the module, base.weight, base.bias, scale and 1 more, which are"
        in caplog.text
    )
    other = Net(seed=3)
    before = other.head.weight.clone()
    with pytest.raises(
        CheckpointError, match=r"trained over other values than Net has: base.weight, base.bias.*strict=False"
    ):
        load_weights(other, tmp_path)
    assert torch.equal(other.head.weight, before)
    with pytest.warns(UserWarning, match="They are taken all the same"):
        load_weights(other, tmp_path, strict=False)
    assert torch.equal(other.head.weight, trained.head.weight)
    assert not torch.equal(other.base.weight, trained.base.weight)
    assert Trainer(QUIET).test(type("T", (Net,), {"test_step": Net.training_step})(), data(), resume=tmp_path)


def test_the_commands_know_of_it(tmp_path, capsys):
    fit(tmp_path / "one")
    fit(tmp_path / "other", Net(seed=3))
    assert main(["checkpoint", "verify", str(tmp_path / "one")]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "inspect", str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    assert (
        "partial: it lacks these tensors of the module\n  base.bias\n  base.weight\n  hidden\n  scale\n  base " in shown
    )
    assert main(["checkpoint", "diff", str(tmp_path / "one"), str(tmp_path / "other")]) == 1
    assert "module.left_out.base.weight" in capsys.readouterr().out
    assert main(["checkpoint", "export", str(tmp_path / "one"), str(tmp_path / "head.pt")]) == 0
    assert (
        "the checkpoint is partial, 4 tensors are in neither: base.bias, base.weight, hidden and 1"
        in capsys.readouterr().out
    )
    assert sorted(torch.load(tmp_path / "head.pt")) == sorted(HEAD)


class Around(Plugin):
    """Writes down when it is called, and doubles a weight for the checkpoint alone."""

    name = "around"

    def validate(self):
        self.calls = []

    @hookimpl(optionalhook=True)
    def before_save(self, loop):
        self.calls.append(("before", loop.global_step))
        with torch.no_grad():
            loop.module.head.bias.add_(64)

    @hookimpl(optionalhook=True)
    def after_save(self, loop):
        self.calls.append(("after", loop.global_step))
        with torch.no_grad():
            loop.module.head.bias.sub_(64)


@pytest.mark.parametrize("options", [{}, {"async_save": True}, {"save_weights_only": True}], ids=str)
def test_a_plugin_merges_for_the_save_and_takes_apart_after(tmp_path, options):
    around = Around()
    module = fit(tmp_path, None, around, max_steps=4, save_every=2, **options)
    assert around.calls == [("before", 2), ("after", 2), ("before", 4), ("after", 4)]
    state = newest(tmp_path)[1]["module"]
    saved = state.get("weights", state.get("parameters"))["head.bias"]
    assert torch.allclose(saved, module.head.bias + 64)


def test_what_was_merged_is_taken_apart_when_a_save_fails(tmp_path, monkeypatch):
    def fails(self, *arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(LocalFolder, "write", fails)
    around = Around()
    with pytest.raises(OSError, match="the disk is full"):
        fit(tmp_path, None, around, save_every=2)
    assert around.calls == [("before", 2), ("after", 2)]


def test_a_run_without_checkpoints_may_have_such_plugins():
    around = Around()
    Trainer(["-*", around, Heads()]).fit(Net(), data())
    assert around.calls == []


@pytest.mark.processes
def test_ranks_that_share_the_module_write_the_part_and_go_on_from_it(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    wanted = values_of(run_ranks(life_of_a_head, 2, whole, FSDP))
    values_of(run_ranks(functools.partial(life_of_a_head, at=8), 2, broken, FSDP))
    _, state = newest(broken)
    assert sorted(state["module"]["parameters"]) == sorted(HEAD)
    assert sorted(state["module"]["left_out"]) == ["body.0.bias", "body.0.weight", "body.4.bias", "body.4.weight"]
    found = values_of(run_ranks(functools.partial(life_of_a_head, resume=str(broken)), 2, broken, FSDP))
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(one["weights"][name], tensor) for name, tensor in other["weights"].items())
        assert one["own"] == other["own"]
    assert newest(whole)[1]["module"]["left_out"] == newest(broken)[1]["module"]["left_out"]
