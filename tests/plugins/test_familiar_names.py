"""Names of Lightning work where they have a meaning here; else an error or a warning says what to write."""

import inspect
import warnings

import pytest
import torch

import lightloop
from lightloop import Module, Trainer, seed_everything
from lightloop.testing.ranks import run_ranks, values_of
from lightloop_plugins.familiar_names import ATTRIBUTES, CALLED, LOG, METHODS, MODULE, OPTIONS, own_methods

QUIET = {"enable_progress_bar": False, "weights_summary": None, "logger": False, "max_epochs": 1}
DATA = [torch.ones(2, 3) for _ in range(4)]


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def stepping(do):
    """A module that calls ``do`` with itself in each training step."""

    class Doing(Net):
        def training_step(self, batch, batch_idx):
            do(self)
            return super().training_step(batch, batch_idx)

    return Doing()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_lightnings_is_an_error_that_says_what_to_write(name):
    with pytest.raises(TypeError) as info:
        Trainer(**{name: True})
    assert f"Trainer has no option {name!r}. Instead: {OPTIONS[name]}." in str(info.value)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_lightnings_trainer_is_an_error_that_says_what_to_write(name):
    with pytest.raises(AttributeError) as info:
        getattr(Trainer(**QUIET), name)
    assert f"Trainer has no attribute {name!r}. Instead: {ATTRIBUTES[name]}." in str(info.value)


@pytest.mark.parametrize("name", MODULE)
def test_an_attribute_of_lightnings_module_is_an_error_that_says_what_to_write(name):
    with pytest.raises(AttributeError) as info:
        Trainer(**QUIET).fit(stepping(lambda module: getattr(module, name)), DATA)
    assert f"Instead: {MODULE[name]}." in info.value.__notes__


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_that_nothing_calls_is_warned_of(name):
    module = type("Sub", (Net,), {name: lambda self, *arguments: None})()
    with pytest.warns(UserWarning, match=f"Sub.{name} is never called"):
        Trainer(**QUIET).fit(module, DATA)


def test_a_misspelt_method_is_warned_of_and_one_of_the_users_own_is_not():
    class Own(Net):
        def on_train_epoch_strat(self): ...

        def on_reset(self): ...

        def sample(self, count): ...

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Trainer(**QUIET).fit(Own(), DATA)
    (warning,) = told
    assert str(warning.message) == (
        "Own.on_train_epoch_strat is never called by Lightloop. Did you mean 'on_train_epoch_start'?"
    )


def test_of_a_lightning_module_whose_hooks_are_called_nothing_is_said():
    base = type("LightningModule", (torch.nn.Module,), {"__module__": "lightning.pytorch.core.module"})
    methods = {"configure_callbacks": lambda self: [], "training_step": lambda self, batch: None}
    assert list(own_methods(type("Sub", (base,), methods)())) == []
    assert list(own_methods(type("Sub", (Net,), methods)()))[:2] == ["configure_callbacks", "training_step"]


def test_what_is_said_not_to_be_called_is_not_called():
    assert not set(METHODS) & set(CALLED)


def test_the_usual_attributes_of_a_module():
    seen = []
    module = stepping(lambda each: seen.append((each.global_rank, each.local_rank, each.dtype, each.logger)))
    Trainer(**QUIET).fit(module, DATA[:1])
    assert seen == [(0, 0, torch.float32, None)]
    assert (Net().double().dtype, Net().global_rank) == (torch.float64, 0)


def test_an_author_may_use_their_names_for_his_own():
    class Own(Net):
        def __init__(self):
            super().__init__()
            self.dtype = "mine"
            self.logger = torch.nn.Linear(1, 1)

    module = Own()
    assert module.dtype == "mine"
    assert module.logger is module._modules["logger"]


@pytest.mark.parametrize("part", [torch.nn.ModuleList(), torch.nn.Parameter(torch.zeros(2)), torch.zeros(2)])
def test_what_torch_keeps_for_an_author_is_his_own_too(part):
    """An empty list is false, and a tensor of two is neither."""

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("logger", part) if type(part) is torch.Tensor else setattr(self, "logger", part)

    class Both(Module):
        def __init__(self):
            super().__init__()
            for kind in ("_modules", "_parameters", "_buffers"):
                vars(self)[kind].update(vars(Own())[kind])

    assert Both().logger is part
    assert Module().logger is None


def test_what_print_prints(capsys):
    Trainer(**QUIET).fit(stepping(lambda module: module.print("here", end="!")), DATA[:1])
    assert capsys.readouterr().out == "here!"


def test_options_of_log_by_lightnings_names():
    rows = []

    def log(module):
        value = module.loop.batch_idx
        module.log("a", value, on_epoch=True, batch_size=value, reduce_fx="mean", sync_dist=True, logger=True)
        module.log("b", value, on_epoch=True, reduce_fx=torch.sum, enable_graph=False, sync_dist_group=None)

    trainer = Trainer(**QUIET)
    rows = trainer.fit(stepping(log), DATA).metrics
    assert (rows["a"], rows["b"]) == (pytest.approx(14 / 6), 6)


@pytest.mark.parametrize(
    "given",
    [{"logger": False}, {"add_dataloader_idx": False}, {"enable_graph": True}, {"metric_attribute": "accuracy"}],
)
def test_an_option_of_log_that_means_nothing_is_an_error_that_says_what_to_write(given):
    (name,) = given
    with pytest.raises(TypeError, match="log has no option") as info:
        Trainer(**QUIET).fit(stepping(lambda module: module.log("a", 1.0, **given)), DATA)
    assert LOG[name] in str(info.value)


def logged_on_two_ranks(**how):
    trainer = Trainer(strategy="ddp", ddp_timeout=60.0, **QUIET)
    trainer.fit(stepping(lambda each: each.log("a", float(each.global_rank), **how)), DATA[:2])
    return trainer.callback_metrics["a"]


def logged_together():
    return logged_on_two_ranks(sync_dist=True)


def logged_by_the_main_rank_alone():
    return logged_on_two_ranks(rank_zero_only=True)


@pytest.mark.processes
def test_with_sync_dist_a_step_of_two_ranks_has_their_mean():
    assert values_of(run_ranks(logged_on_two_ranks, 2)) == [0, 1]
    assert values_of(run_ranks(logged_together, 2)) == [0.5, 0.5]
    outcomes = run_ranks(logged_by_the_main_rank_alone, 2)
    assert ["leave out rank_zero_only" in outcome.error for outcome in outcomes] == [True, True]


def test_the_module_may_be_passed_as_model():
    trainer = Trainer(**QUIET)
    assert trainer.fit(model=Net(), train=DATA).global_step == 4
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module"):
        trainer.fit(train=DATA)


def test_the_result_of_the_fit_is_still_there_after_a_test():
    class Tested(Net):
        def test_step(self, batch, batch_idx):
            self.log("t", 1.0)

    trainer, module = Trainer(**QUIET), Tested()
    assert trainer.fit_result is None
    result = trainer.fit(module, DATA)
    trainer.test(module, DATA)
    assert trainer.fit_result is result


def test_the_signature_of_the_trainer_has_the_options_of_all_plugins():
    class Sized(Trainer):
        def __init__(self, size, **options):
            super().__init__(**options)

    parameters = inspect.signature(Trainer).parameters
    assert next(iter(parameters)) == "plugins"
    assert parameters["max_epochs"].default is None
    assert parameters["accumulate_grad_batches"].default == 1
    assert {"logger", "strategy"} <= set(parameters)
    assert list(inspect.signature(Sized).parameters)[:2] == ["size", "accelerator"]
    assert str(inspect.signature(type("Own", (Trainer,), {"__init__": lambda self, a, b=2: None}))) == "(a, b=2)"


def test_what_a_trainer_is_made_with_is_seen():
    assert repr(Trainer(["-csv"], max_epochs=3)) == "Trainer(plugins=['-csv'], max_epochs=3)"


def test_a_seed_may_be_an_integer_of_numpy():
    numpy = pytest.importorskip("numpy")
    seed = seed_everything(numpy.int64(5))
    assert (seed, type(seed)) == (5, int)
    with pytest.raises(ValueError, match="whole number"):
        seed_everything(True)


def test_the_version_is_that_of_the_distribution():
    assert lightloop.__version__.count(".") >= 1
