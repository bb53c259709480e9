"""Weights alone, hyperparameters, and the files of others."""

import os
import pickle

import pytest
import safetensors.torch
import torch

from lightloop import Trainer
from lightloop.testing import TinyClassifier, classification_batches
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.weights.filling import fill
from lightloop_plugins.checkpoint.weights.load import export_weights, load_weights
from lightloop_plugins.checkpoint.weights.unpickle import import_weights

QUIET = ["-progress", "-model_summary"]


class Classifier(TinyClassifier):
    def __init__(self, lr=0.1, width=8, **more):
        super().__init__(lr)
        self.save_hyperparameters()
        self.net[0] = torch.nn.Linear(4, width)
        self.net[2] = torch.nn.Linear(width, 3)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


@pytest.fixture(params=[False, True], ids=["run", "weights"])
def trained(request, tmp_path):
    module = Classifier(0.05, width=5, note="x")
    Trainer(QUIET, checkpoint_dir=tmp_path / "run", save_weights_only=request.param).fit(
        module, classification_batches(3)
    )
    return module, tmp_path / "run", request.param


def same(one, other):
    return all(torch.equal(one.state_dict()[name], value) for name, value in other.state_dict().items())


def test_a_module_comes_back_with_its_hyperparameters(trained):
    module, path, _ = trained
    loaded = Classifier.load_from_checkpoint(path)
    assert same(loaded, module)
    assert loaded.hparams == {"lr": 0.05, "width": 5, "note": "x"}
    assert (loaded.hparams.width, loaded.lr) == (5, 0.05)
    assert Classifier.load_from_checkpoint(path, lr=0.5).lr == 0.5


def test_weights_alone_are_no_run_to_go_on_from(trained):
    _, path, alone = trained
    options = {"checkpoint_dir": path, "resume": "auto", "max_epochs": 2}
    if alone:
        with pytest.raises(CheckpointError, match="has weights alone"):
            Trainer(QUIET, **options).fit(Classifier(0.05, width=5, note="x"), classification_batches(3))
    else:
        assert (
            Trainer(QUIET, **options).fit(Classifier(0.05, width=5, note="x"), classification_batches(3)).global_step
            == 6
        )


def test_weights_of_another_module_are_refused_and_change_nothing(trained):
    _, path, _ = trained
    other = TinyClassifier()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"net\.0\.weight has shape \[5, 4\] there, \[8, 4\] in TinyClassifier"):
        load_weights(other, path)
    more = torch.nn.ModuleDict({"net": Classifier(width=5).net, "head": torch.nn.Linear(1, 1)})
    with pytest.raises(CheckpointError, match=r"it lacks head\.bias, head\.weight and has nothing"):
        load_weights(more, path)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    with pytest.warns(
        UserWarning, match=r"run is not all of ModuleDict: it lacks head\.bias, head\.weight and has nothing"
    ):
        load_weights(more, path, strict=False)


def test_an_argument_that_was_not_saved_is_asked_for(tmp_path):
    class Needs(TinyClassifier):
        def __init__(self, size):
            super().__init__()

    Trainer(QUIET, checkpoint_dir=tmp_path).fit(Needs(3), classification_batches(1))
    with pytest.raises(CheckpointError, match=r"missing 1 required positional argument: 'size'.*Pass what is missing"):
        Needs.load_from_checkpoint(tmp_path)
    assert isinstance(Needs.load_from_checkpoint(tmp_path, size=3), Needs)


def test_a_hyperparameter_that_cannot_be_stored_is_left_out(tmp_path):
    module = Classifier(loss=torch.nn.functional.mse_loss)
    with pytest.warns(UserWarning, match="hyperparameter 'loss' is not in the checkpoint"):
        Trainer(QUIET, checkpoint_dir=tmp_path).fit(module, classification_batches(1))
    assert Classifier.load_from_checkpoint(tmp_path).hparams == {"lr": 0.1, "width": 8}


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_export_is_what_others_read(trained, tmp_path, kind):
    module, path, _ = trained
    export_weights(path, tmp_path / f"out.{kind}")
    file = tmp_path / f"out.{kind}"
    read = safetensors.torch.load_file(file) if kind == "safetensors" else torch.load(file, weights_only=True)
    other = Classifier(width=5)
    other.load_state_dict({name: value for name, value in read.items() if name != "scratch"})
    assert same(other, module)
    if kind == "safetensors":
        third = Classifier(width=5)
        load_weights(third, file)
        assert same(third, module)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_file_of_others_runs_nothing(tmp_path):
    weights = {"a": torch.arange(3.0)}
    torch.save({"state_dict": weights, "epoch": 3}, tmp_path / "plain.ckpt")
    assert torch.equal(import_weights(tmp_path / "plain.ckpt")["a"], weights["a"])
    torch.save({"state_dict": weights, "evil": Evil(str(tmp_path / "made"))}, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match=r"more than tensors.*trust=True"):
        import_weights(tmp_path / "evil.ckpt")
    assert not (tmp_path / "made").exists()


def test_a_tensor_that_claims_more_than_it_has_is_refused(tmp_path):
    torch.save({"a": torch.zeros(1).expand(2**40)}, tmp_path / "big.pt")
    with pytest.raises(CheckpointError, match="has not that many values"):
        import_weights(tmp_path / "big.pt")
    torch.save({"a": 1}, tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="has no weights"):
        import_weights(tmp_path / "none.pt")


def test_modules_with_hyperparameters_pickle():
    assert pickle.loads(pickle.dumps(Classifier(0.3))).hparams == {"lr": 0.3, "width": 8}
    with pytest.raises(AttributeError, match="there is no hyperparameter 'depth'; there are lr, width"):
        _ = Classifier().hparams.depth


class Compiled(torch.nn.Module):
    """What ``torch.compile`` makes of a module, by its names."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x):
        return self._orig_mod(x)


class Two(torch.nn.Module):
    def __init__(self, wrap=lambda module: module):
        super().__init__()
        self.first = wrap(torch.nn.Linear(2, 2))
        self.second = wrap(torch.nn.Sequential(torch.nn.Linear(2, 2), wrap(torch.nn.Linear(2, 1))))


PLACES = {"nowhere": Two, "in it": lambda: Two(Compiled), "around it": lambda: Compiled(Two()),
          "everywhere": lambda: Compiled(Two(Compiled))}  # fmt: skip


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("there", PLACES)
@pytest.mark.parametrize("here", PLACES)
def test_weights_of_a_compiled_module_are_those_of_the_module(here, there, strict):
    one, other = PLACES[here](), PLACES[there]()
    fill(one, other.state_dict(), "it", strict)
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_module_that_has_a_part_and_its_compiled_twin_is_loaded_by_its_own_names():
    def make():
        module = Two()
        module.first._orig_mod = torch.nn.Linear(2, 2)  # first.weight and first._orig_mod.weight
        return module

    one, other = make(), make()
    fill(one, other.state_dict(), "it")
    assert same(one, other)


def test_what_does_not_fit_is_told_and_where_nothing_fits_it_is_an_error():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    weights = {"0.weight": torch.zeros(2, 2), "2.weight": torch.ones(1)}
    with pytest.warns(
        UserWarning, match=r"it is not all of Sequential: it lacks 0.bias, 1.bias, 1.weight and has 2.weight bes"
    ):
        fill(module, weights, "it", strict=False)
    assert torch.equal(module[0].weight, torch.zeros(2, 2))
    assert torch.equal(module[1].weight, before["1.weight"])
    for strict in (True, False):
        with pytest.raises(
            CheckpointError, match=r"of another module than Sequential: it lacks .* no name is the same"
        ):
            fill(module, {"model.0.weight": torch.ones(2, 2)}, "it", strict)
        with pytest.raises(CheckpointError, match=r"0.weight has shape \[3\] there, \[2, 2\] in Sequential"):
            fill(module, {**module.state_dict(), "0.weight": torch.ones(3)}, "it", strict)
    with pytest.raises(
        CheckpointError, match=r"it lacks 0.bias, 1.bias, 1.weight and has 2.weight beside. strict=False loads"
    ):
        fill(module, weights, "it")
    many = {f"{n}.weight": torch.ones(1) for n in range(10)}
    with pytest.raises(CheckpointError, match=r"2.weight, 3.weight, 4.weight, 5.weight, 6.weight and 3 more beside"):
        fill(module, many, "it")


def test_a_checkpoint_of_a_run_whose_part_was_compiled_loads_into_the_module_itself(tmp_path):
    module = Classifier()
    module.net = Compiled(module.net)
    Trainer(QUIET, checkpoint_dir=tmp_path / "run", max_epochs=1).fit(module, classification_batches(3))
    again = Classifier.load_from_checkpoint(tmp_path / "run")
    assert torch.equal(again.net[0].weight, module.net._orig_mod[0].weight)
