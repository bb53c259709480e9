"""Every built-in plugin, with each of its options turned on: stopped at each boundary and resumed, a run is the same.

``make test`` tries a sample of the boundaries of the options that have something to remember, ``make torture`` all.
"""

import logging
import random
from functools import partial

import pytest

from lightloop import Plugin, hookimpl
from tests.resuming.rig import resuming
from tests.resuming.scenarios import LOADERS, MODULES
from tests.testing.test_every_option import ELSEWHERE, GONE, OPTIONS, TURNED_ON, legal_value

SAVES = {
    "checkpoint_dir": "the machine says where",
    "default_root_dir": "the machine says where",
    "enable_checkpointing": "without it, nothing is resumed",
    "resume": "the machine says so",
    "resume_strict": "the machine resumes",
    "run_name": "the machine says where",
    "run_version": "the machine says where",
    "save_every": "the machine saves everywhere",
    "save_weights_only": "with it, nothing is resumed",
    "fast_dev_run": "saves nothing",
    "auto_scale_batch_size": "makes data of its own before each fit; tests/plugins/test_batch_size_find.py has it",
    "batch_size_find_attribute": "as auto_scale_batch_size",
    "train_dataloaders": "the machine gives them",
    "val_dataloaders": "the machine gives them",
    "dataloaders": "are none of a fit",
    "datamodule": "the machine gives the data",
    "max_time": "is a time, and no two runs take as long",
    "devices": "starts processes",
    "num_nodes": "starts processes",
    "strategy": "starts processes",
    "seed": "seeds what the machine scrambles",
    "auto_lr_find": "trains before each fit; tests/plugins/test_lr_find.py has it",
    "weights_summary": "prints what the machine keeps quiet",
    "compile": "takes too long for hundreds of runs; tests/plugins/test_compile.py has it",
    "compile_backend": "as compile",
}
"""Options that are not for the machine, and why."""
KEYWORDS = [keyword for keyword in OPTIONS if keyword not in {*SAVES, *GONE, *ELSEWHERE} and "fsdp" not in keyword]
KEYWORDS = [keyword for keyword in KEYWORDS if not keyword.startswith(("ddp_", "compile"))]
VALUES = {"max_steps": 6, "limit_val_batches": 1}
"""Legal values with which a run of the machine has boundaries."""
MODULE_OF = {"truncated_bptt_steps": "Sequences", "automatic_optimization": "ByHand", "optimizer_frequencies": "Net"}
MODULE_OF |= {keyword: "Sequences" for keyword in OPTIONS if keyword.startswith("tbptt")}

E = {"early_stop_callback": True, "early_stopping_strict": False, "early_stopping_patience": 2}
EVENTS = {
    **{f"{action} {size}": ("Infinite", {"nonfinite": action, "accumulate_grad_batches": size})
       for action in ("warn", "skip_step", "drop_batch", "rewind", "stop") for size in (1, 2)},
    "rewind to an older copy": ("Infinite", {"nonfinite": "rewind", "nonfinite_keep_every": 3}),
    "rewind to an older copy, in windows": ("NanGradients", {"nonfinite": "rewind", "nonfinite_keep_every": 2, "accumulate_grad_batches": 2}),
    "rewind two optimizers": ("Several", {"nonfinite": "rewind", "nonfinite_keep_every": 3}),
    "gradients that are NaN": ("NanGradients", {"nonfinite": "skip_step", "accumulate_grad_batches": 2}),
    "a limit": ("NanGradients", {"nonfinite": "skip_step", "nonfinite_limit": 2, "accumulate_grad_batches": 2}),
    "told later": ("NanGradients", {"nonfinite_async": "zero", "nonfinite_async_every": 2}),
    **{f"early stopping by {monitor}, validated {often}, at epoch ends {at}": (
        "Net", {"early_stopping_monitor": monitor, "val_check_interval": often, "early_stopping_check_on_train_epoch_end": at, **E})
       for monitor in ("val_loss", "early", "loss") for often in (1.0, 3) for at in (None, True)},
    **{f"early stopping that min_epochs holds, validated {often}": (
        "Net", {"val_check_interval": often, "min_epochs": 3, **E, "early_stopping_patience": 1}) for often in (1.0, 0.5)},
    "early stopping by validation alone": ("Net", {"val_check_interval": 0.5, "early_stopping_check_on_train_epoch_end": False, **E}),
    "half precision": ("Net", {"precision": "16-mixed", "accumulate_grad_batches": 2}),
    "half precision, where a window ends with a bad batch": (
        "NanGradients", {"precision": "16-mixed", "nonfinite": "rewind", "accumulate_grad_batches": 2}),
    "optimizers in turn": ("InTurn", {"accumulate_grad_batches": 2}),
    "optimizers that share a parameter": ("Several", {"accumulate_grad_batches": 3}),
    "a step by hand": ("ByHand", {"accumulate_grad_batches": 2}),
    "a closure": ("LBFGS", {"accumulate_grad_batches": 2}),
    "outputs of an epoch": ("Outputs", {}),
    "sequences": ("Sequences", {"truncated_bptt_steps": 2, "accumulate_grad_batches": 2}),
    "sequences, a window for each batch": ("Sequences", {"truncated_bptt_steps": 2, "tbptt_accumulate": True}),
    "validated across epochs": ("Net", {"val_check_interval": 3, "check_val_every_n_epoch": None}),
    "averages": ("Net", {"swa_start": 1, "swa_lr": 0.05, "ema_decay": 0.9, "ema_every": 2}),
    "loaders that are made anew": ("Net", {"reload_dataloaders_every_n_epochs": 2}),
    "the best checkpoints": ("Net", {"monitor": "val_loss", "save_top_k": 2, "save_last": 1}),
}  # fmt: skip
"""What plugins are there for, and the module in which it happens."""


@pytest.fixture
def proved(tmp_path, counted):
    def prove(options, sample=None, **how):
        logging.getLogger("lightloop").setLevel(logging.ERROR)
        report = counted(resuming(tmp_path, options, **how).prove(sample))
        assert not report.partings, "\n".join(map(str, (report, *report.first)))
        return report

    return prove


def options_of(keyword):
    name, _ = OPTIONS[keyword]
    return {**TURNED_ON.get(name, {}), keyword: VALUES.get(keyword, legal_value(keyword))}


class Waits(Plugin):
    """Waits for a save on a thread, so that the files of the run have it when they are copied."""

    name = "waits"
    after = ("checkpoint",)

    @hookimpl
    def between_batches(self, loop):
        loop.trainer.plugin("checkpoint")._saver.wait()


SAMPLE = ["skip_step 2", "rewind to an older copy, in windows", "early stopping by val_loss, validated 3, at epoch ends True",
          "early stopping by early, validated 1.0, at epoch ends None", "outputs of an epoch", "averages", "half precision, where a window ends with a bad batch"]  # fmt: skip


@pytest.mark.parametrize("event", SAMPLE)
def test_a_run_in_which_something_happens_is_resumed_exactly_from_some_boundaries(event, proved):
    module, options = EVENTS[event]
    assert proved({"max_epochs": 2, **options}, 4, module=module).boundaries == 4


@pytest.mark.torture
@pytest.mark.parametrize("event", EVENTS)
def test_a_run_in_which_something_happens_is_resumed_exactly_from_every_boundary(event, proved):
    module, options = EVENTS[event]
    assert proved(options, module=module).boundaries


@pytest.mark.torture
@pytest.mark.parametrize("loader", sorted(LOADERS.keys() - {"sequences"}))
@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"Sequences"}))
def test_every_module_is_resumed_exactly_with_every_loader(module, loader, proved):
    assert proved({"accumulate_grad_batches": 2}, module=module, loader=loader).boundaries


@pytest.mark.torture
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keyword", KEYWORDS)
def test_every_option_is_resumed_exactly_from_every_boundary(keyword, proved):
    module = MODULE_OF.get(keyword, "Net")
    options = options_of(keyword)
    if module == "Sequences":
        options = {"truncated_bptt_steps": 2, **options}
    assert proved(options, module=module, plugins=[Waits] if keyword == "async_save" else []).boundaries


@pytest.mark.torture
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_random_sets_of_events_are_resumed_exactly(seed, proved):
    draw = random.Random(seed)
    picked = draw.sample(
        [options for module, options in EVENTS.values() if module in ("Net", "Infinite", "NanGradients")], 3
    )
    options = {keyword: value for each in picked for keyword, value in each.items()}
    if "nonfinite" in options:
        options.pop("nonfinite_async", None)
        options.pop("nonfinite_async_every", None)
    how = partial(proved, options, module=draw.choice(["Infinite", "NanGradients"]))
    assert how(loader=draw.choice(sorted(LOADERS.keys() - {"sequences"}))).boundaries
