"""Every old name of the Trainer's options, of arguments and of attributes: it works, warns, and names the new one."""

import re
from pathlib import Path

import pytest

from lightloop import Trainer
from lightloop.host.keywords import known_options
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop.toolkit import discover

PAGE = Path(__file__).parent.parent / "docs" / "names.md"
# old name: (a value for it, the new name, the value that this stands for)
OPTIONS = {
    "max_nb_epochs": (3, "max_epochs", 3),
    "min_nb_epochs": (2, "min_epochs", 2),
    "train_percent_check": (0.5, "limit_train_batches", 0.5),
    "val_percent_check": (0.5, "limit_val_batches", 0.5),
    "test_percent_check": (0.5, "limit_test_batches", 0.5),
    "overfit_pct": (0.5, "overfit_batches", 0.5),
    "nb_sanity_val_steps": (5, "num_sanity_val_steps", 5),
    "gradient_clip": (0.5, "gradient_clip_val", 0.5),
    "row_log_interval": (10, "log_every_n_steps", 10),
    "add_row_log_interval": (10, "log_every_n_steps", 10),
    "log_save_interval": (20, "flush_logs_every_n_steps", 20),
    "default_save_path": ("somewhere", "default_root_dir", "somewhere"),
    "use_amp": (True, "precision", 16),
    "show_progress_bar": (False, "enable_progress_bar", False),
    "progress_bar_refresh_rate": (20, "enable_progress_bar", True),
    "enable_early_stop": (True, "early_stop_callback", True),
    "reload_dataloaders_every_epoch": (True, "reload_dataloaders_every_n_epochs", True),
    "log_gpu_memory": ("all", "log_device_stats", 50),
    "checkpoint_callback": (False, "enable_checkpointing", False),
    "resume_from_checkpoint": ("somewhere", "resume", "somewhere"),
    "ckpt_path": ("somewhere", "resume", "somewhere"),
    "distributed_backend": ("ddp_spawn", "strategy", "ddp"),
    "use_ddp": (True, "strategy", "ddp"),
    "use_ddp2": (True, "strategy", "ddp"),
    "use_dp": (True, "strategy", "dp"),
    "use_horovod": (True, "strategy", "horovod"),
    "num_processes": (2, "devices", 2),
    "nb_gpu_nodes": (2, "num_nodes", 2),
    "replace_sampler_ddp": (False, "use_distributed_sampler", False),
}
# where the old name asks for the default: what to set it apart from
DIFFERENT = {
    "progress_bar_refresh_rate": {"enable_progress_bar": False},
    **{name: {"strategy": "dp"} for name in ("distributed_backend", "use_ddp", "use_ddp2")},
}
# options that mean nothing any more: options that are refused, and what the error says to write
GONE = {
    "print_nan_grads": ({"print_nan_grads": True}, "terminate_on_nan=True"),
    "weights_save_path": ({"weights_save_path": "somewhere"}, "default_root_dir"),
    "amp_level": ({"precision": 16, "amp_level": "O1"}, "precision='16-mixed'"),
}


def known():
    return known_options(discover())


@pytest.mark.parametrize("old", OPTIONS)
def test_an_old_option_works_warns_and_names_the_new_one(old):
    value, new, today = OPTIONS[old]
    with pytest.warns(DeprecationWarning, match=f"'{old}' is now called '{new}'"):
        trainer = Trainer(**{old: value})
    assert (
        repr(trainer.plugins)
        == repr(Trainer(**{new: today}).plugins)
        != repr(Trainer(**DIFFERENT.get(old, {})).plugins)
    )


@pytest.mark.parametrize("old", OPTIONS)
def test_old_and_new_at_once_are_an_error(old):
    value, new, today = OPTIONS[old]
    with pytest.raises(TypeError, match=f"give '{new}' alone"):
        Trainer(**{new: today, old: value})


@pytest.mark.parametrize("old", GONE)
def test_an_option_that_means_nothing_says_what_to_write(old):
    options, instead = GONE[old]
    with pytest.raises(ValueError, match=old) as caught:
        Trainer(**options)
    assert instead in str(caught.value)


def test_no_old_option_is_missing_from_this_list():
    aliases = {name: option.keyword for name, option in known().items() if name != option.keyword}
    listed = {old: new for old, (_, new, _) in OPTIONS.items()}
    elsewhere = {"max_depth"}  # an alias for users of later libraries
    elsewhere |= {"num_tpu_cores", "use_tpu"}  # of an option that is old itself: plugins/test_xla.py
    for line in PAGE.read_text().splitlines():
        if "| not yet " in line:
            elsewhere |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
    assert {old: new for old, new in aliases.items() if old not in elsewhere} == listed


@pytest.mark.parametrize("name", ["dp", "ddp", "ddp_cpu", "ddp_spawn", "ddp2", "horovod", None])
def test_every_old_backend_is_a_strategy(name):
    strategy = name and {"dp": "dp", "horovod": "horovod"}.get(name, "ddp")
    with pytest.warns(DeprecationWarning, match="'distributed_backend' is now called 'strategy'"):
        trainer = Trainer(distributed_backend=name)
    assert repr(trainer.plugins) == repr(Trainer(strategy=strategy).plugins)


def test_a_backend_that_nobody_provides_is_an_error_with_those_that_there_are():
    with pytest.raises(
        ValueError, match=r"strategy \(ddp.kind\) must be 'auto', False, or one of ddp, dp, .*; it is 'ring'"
    ):
        Trainer(strategy="ring")
    renamed = pytest.warns(DeprecationWarning, match="is now called 'strategy'")
    with renamed, pytest.raises(ValueError, match="must be 'auto', False, or one of"):
        Trainer(distributed_backend="ring")


@pytest.mark.parametrize(("gpus", "number"), [(1, 1), ("2", 2), ([0, 1], 2), ("0,1", 2), (-1, -1)], ids=repr)
def test_gpus_is_a_device_plugin_of_its_own(gpus, number):
    with pytest.warns(DeprecationWarning, match="'gpus' is now accelerator='gpu' and devices=n"):
        trainer = Trainer(gpus=gpus)
    (plugin,) = [plugin for plugin in trainer.plugins if plugin.group == "accelerator"]
    assert (plugin.name, plugin.number) == ("gpus", number)


@pytest.mark.parametrize("gpus", [0, None, "", []], ids=repr)
def test_no_gpus_is_the_cpu(gpus):
    assert [plugin.name for plugin in Trainer(gpus=gpus).plugins if plugin.group == "accelerator"] == ["cpu"]


def test_gpus_by_index_are_chosen_by_the_environment():
    with pytest.raises(ValueError, match="say which ones by CUDA_VISIBLE_DEVICES, and gpus=2"):
        Trainer(gpus=[1, 3])


def test_arguments_of_steps_have_their_old_names():
    seen = []

    class Old(TinyClassifier):
        def training_step(self, batch, batch_nb):
            seen.append(("train", batch_nb))
            return super().training_step(batch, batch_nb)

        def validation_step(self, batch, batch_nb, dataloader_i):
            seen.append(("validate", batch_nb, dataloader_i))

    with pytest.warns(DeprecationWarning, match="is now called") as warned:
        Trainer(plugins=["-*", "old_names"]).fit(Old(), classification_batches(2))
    assert sorted(str(each.message) for each in warned) == [
        "the argument 'batch_nb' of training_step is now called 'batch_idx'",
        "the argument 'batch_nb' of validation_step is now called 'batch_idx'",
        "the argument 'dataloader_i' of validation_step is now called 'dataloader_idx'",
    ]
    assert seen == [("train", 0), ("train", 1)]
    seen.clear()
    with pytest.warns(DeprecationWarning, match="the argument"):
        Trainer(plugins=["-*", "old_names"]).validate(
            Old(), [iter(classification_batches(1)), iter(classification_batches(1))]
        )
    assert seen == [("validate", 0, 0), ("validate", 0, 1)]


def test_attributes_of_the_trainer_have_their_old_names():
    class Logs(Probe):
        def training_step(self, batch):
            self.log("x", batch, prog_bar=True)
            return super().training_step(batch)

        def get_progress_bar_dict(self):
            return {"v_num": 7, "name": "ignored", "x": 9}

    trainer = Trainer(plugins=["-*", "old_names"])
    trainer.fit(Logs(), probe_batches(2))
    with pytest.warns(DeprecationWarning, match="training_tqdm_dict is now called 'progress_bar_dict'"):
        assert trainer.training_tqdm_dict == {"x": 2.0, "v_num": 7.0} == trainer.progress_bar_dict
    with pytest.warns(DeprecationWarning, match="batch_nb is now called 'batch_idx'"):
        assert trainer.batch_nb == trainer.batch_idx
    with pytest.warns(DeprecationWarning, match="'row_log_interval' is now called 'log_every_n_steps'"):
        assert trainer.row_log_interval == trainer.log_every_n_steps == 50
