"""Each option of each built-in, turned on with every default plugin live beside it, for a fit of two batches."""

import typing

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Callback, Trainer
from lightloop.host.options import fits, hints_of, options_of
from lightloop.testing import TinyClassifier, classification_batches
from lightloop.toolkit import discover
from tests.testing.test_builtins import CANNOT_RUN, OURS, Sequences, Sized, seeded

KINDS = {name: discover()[name].plugin for name in OURS}
OPTIONS = {keyword: (name, field) for name, kind in KINDS.items() for keyword, field in options_of(kind).items()}


class ByHand(TinyClassifier):
    """Goes backward and steps by itself."""

    def training_step(self, batch, loop):
        loop.optimizers[0].zero_grad()
        torch.nn.functional.cross_entropy(self(batch[0]), batch[1]).backward()
        loop.optimizers[0].step()


class SizedByAnotherName(Sized):
    @property
    def size(self):
        return self.batch_size

    @size.setter
    def size(self, value):
        self.batch_size = value


class DataModule:
    """Has the methods that LightningDataModule has."""

    def prepare_data(self): ...
    def setup(self, stage): ...
    def teardown(self, stage): ...
    def on_exception(self, exception): ...
    def load_state_dict(self, state): ...
    def state_dict(self):
        return {}

    def train_dataloader(self):
        return loader()


def loader():
    x, y = zip(*classification_batches(2), strict=True)
    return DataLoader(TensorDataset(torch.cat(x), torch.cat(y)), batch_size=8)


def data_for(module):
    if isinstance(module, Sequences):
        return [(x.reshape(2, 4, 4), y.reshape(2, 4)) for x, y in classification_batches(2)]
    return loader()


VALUES = {
    "accelerator": "cpu:0",
    "accelerator_index": 0,
    "auto_lr_find": True,
    "auto_scale_batch_size": "binary",
    "batch_size_find_attribute": "size",
    "callbacks": Callback(),
    "checkpoint_dir": "{tmp}/saved",
    "compile_backend": "eager",
    "cuda_graphs_guard": False,
    "datamodule": DataModule(),
    "dataloaders": loader(),
    "ddp_backend": "gloo",
    "default_root_dir": "{tmp}/elsewhere",
    "devices": 1,
    "early_stopping_divergence_threshold": 100.0,
    "early_stopping_monitor": "loss",
    "early_stopping_stopping_threshold": 0.001,
    "ema_decay": 0.9,
    "ema_device": "cpu",
    "end_on_signals": ("SIGTERM",),
    "fsdp_backend": "gloo",
    "fsdp_blocks": ("Linear",),
    "gradient_clip_val": 0.1,
    "grad_norm_key": "norm/{name}",
    "limit_predict_batches": 0.5,
    "limit_test_batches": 0.5,
    "limit_train_batches": 0.5,
    "limit_val_batches": 0.5,
    "log_device_stats": 1,
    "max_epochs": 2,
    "max_steps": 1,
    "max_time": "1 min",
    "min_epochs": 1,
    "min_steps": 1,
    "monitor": "val_loss",
    "nonfinite_async_limit": 2,
    "nonfinite_limit": 2,
    "nonfinite_watch": ("param",),
    "num_nodes": 1,
    "optimizer_frequencies": [1],
    "overfit_batches": 1,
    "precision": "bf16-mixed",
    "profiler": True,
    "progress_interval": 0.01,
    "requeue_signal": "SIGUSR2",
    "resume": "auto",
    "run_name": "mine",
    "run_version": 3,
    "save_every": "1 step",
    "seed": 1,
    "strategy": False,
    "swa_lr": 0.05,
    "swa_start": 0,
    "tbptt_time_dim": {"0": 1, "1": 1},
    "terminate_on_nan_checks": ("loss",),
    "track_grad_norm": 2.0,
    "train_dataloaders": loader(),
    "truncated_bptt_steps": 2,
    "val_check_interval": 0.5,
    "val_dataloaders": loader(),
}
"""Legal values that neither the type nor the default tells."""
TURNED_ON = {
    "time_limit": {"max_epochs": 1},
    "accelerator": {"plugins": ["accelerator"]},
    "batch_size_find": {"auto_scale_batch_size": True},
    "clip": {"gradient_clip_val": 0.1},
    "compile": {"compile": True, "compile_backend": "eager"},
    "early_stopping": {"early_stop_callback": True},
    "ema": {"ema_decay": 0.9},
    "fsdp": {"strategy": "fsdp"},
    "grad_norm": {"track_grad_norm": 2.0},
    "nonfinite": {"nonfinite": "warn"},
    "nonfinite_async": {"nonfinite_async": "warn"},
    "precision": {"precision": "16-mixed"},
    "slurm": {"auto_requeue": True},
    "swa": {"swa_start": 0},
    "tbptt": {"truncated_bptt_steps": 2},
    "tensorboard": {"logger": ["csv", "tensorboard"]},
    "terminate_on_nan": {"terminate_on_nan": True},
    "throughput": {"plugins": ["throughput"]},
}
"""What turns on the plugin of an option that only tunes it."""
MODULES = {
    "automatic_optimization": ByHand,
    "auto_scale_batch_size": Sized,
    "batch_size_find_attribute": SizedByAnotherName,
    **dict.fromkeys(["truncated_bptt_steps", "tbptt_accumulate", "tbptt_time_dim"], Sequences),
}
GONE = {
    "amp_level": ("O1", "for apex is gone"),
    "print_nan_grads": (True, "print_nan_grads is gone"),
    "weights_save_path": ("weights", "weights_save_path is gone"),
}
"""Those of which there is nothing but what to write instead."""
ELSEWHERE = {
    **{keyword: why for keyword, (name, _) in OPTIONS.items() if (why := CANNOT_RUN.get(name)) is not None},
    "compile_mode": "modes are those of inductor, which compiles for ten seconds; tests/plugins/test_compile.py has it",
    "compile_fullgraph": "a step that logs is not one graph; tests/plugins/test_compile.py has it",
}


def legal_value(keyword):
    """A value that differs from the default: that of the table, or one by the option's type."""
    name, field = OPTIONS[keyword]
    hint, default = hints_of(KINDS[name])[field.name], field.default
    if keyword in VALUES:
        return VALUES[keyword]
    parts = (hint, *typing.get_args(hint))
    choices = [
        choice for part in parts if typing.get_origin(part) is typing.Literal for choice in typing.get_args(part)
    ]
    if choices:
        return next(choice for choice in choices if choice != default)
    if bool in parts:
        return not default
    if isinstance(default, (int, float)):
        return default + 1
    raise LookupError(f"{keyword}: {hint} with default {default!r} needs a value in VALUES")


def test_every_value_is_legal_and_no_entry_is_stale():
    for keyword in {*OPTIONS} - {*ELSEWHERE} - {*GONE}:
        name, field = OPTIONS[keyword]
        assert legal_value(keyword) != field.default
        assert fits(legal_value(keyword), hints_of(KINDS[name])[field.name]), keyword
    if any(found.left_out_by for found in discover().values()):
        pytest.skip("the tables speak of plugins that are left out")
    assert {*VALUES, *ELSEWHERE, *GONE, *MODULES} <= {*OPTIONS}
    assert {*TURNED_ON} <= {*KINDS}


@pytest.mark.parametrize("keyword", [keyword for keyword in OPTIONS if keyword in GONE])
def test_what_is_gone_says_so(keyword):
    value, said = GONE[keyword]
    with pytest.raises(ValueError, match=said):
        Trainer(**TURNED_ON.get(OPTIONS[keyword][0], {}), **{keyword: value})


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's compiler looks at it
@pytest.mark.parametrize("keyword", [keyword for keyword in OPTIONS if keyword not in GONE])
def test_an_option_works_in_company(keyword, tmp_path):
    if keyword in ELSEWHERE:
        pytest.skip(ELSEWHERE[keyword])
    name, field = OPTIONS[keyword]
    value = legal_value(keyword)
    if isinstance(value, str):
        value = value.replace("{tmp}", str(tmp_path))
    trainer = Trainer(**{"default_root_dir": str(tmp_path), **TURNED_ON.get(name, {}), keyword: value})
    module = seeded(MODULES.get(keyword, TinyClassifier))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    result = trainer.fit(module, data_for(module), data_for(module))
    assert result.status in ("finished", "stopped")
    assert result.disabled == {}
    assert result.global_step >= 1
    assert any(not torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    found = [plugin for plugin in trainer.plugins if plugin.name == name]
    if not (field.default is True and value is False):  # which leaves the plugin out, for some
        assert [getattr(plugin, field.name) for plugin in found] == [value]
