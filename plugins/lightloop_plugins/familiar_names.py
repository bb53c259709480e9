"""Say what to write in place of the names of Lightning that have no meaning here."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import nn

from lightloop import Callback, Loop, Module, Plugin, hookimpl
from lightloop.toolkit import warn

OPTIONS = {
    "barebones": 'Trainer(plugins=["-*"]) leaves out all plugins that are live by default',
    "benchmark": "set torch.backends.cudnn.benchmark = True",
    "detect_anomaly_mode": "give detect_anomaly=True",
    "deterministic": "call torch.use_deterministic_algorithms(True), and seed with Trainer(seed=...)",
    "early_stopping": 'give early_stopping_monitor="val_loss", early_stopping_patience=3',
    "enable_autolog_hparams": "hyperparameters are logged where the module has called save_hyperparameters()",
    "enable_model_summary": 'give weights_summary="top", "full" or None',
    "inference_mode": "evaluation runs without gradients; there is nothing to set",
    "model_registry": "copy the directory of a checkpoint, or export it with lightloop checkpoint export",
    "sync_batchnorm": "call torch.nn.SyncBatchNorm.convert_sync_batchnorm(module) before fit",
    "progress": "give enable_progress_bar=True or False",
    "val_loaders": "pass them to fit(module, train, val)",
}
"""Arguments of Lightning's Trainer that are no options here, and what to write."""
ATTRIBUTES = {
    "log_dir": "trainer.run_dir is the directory of the run",
    "loggers": "trainer.logger is the first; trainer.plugins has all",
    "early_stopping_callback": 'write trainer.plugin("early_stopping")',
    "progress_bar_callback": 'write trainer.plugin("progress")',
    "num_devices": "write trainer.world_size",
    "state": "write trainer.loop.stage and trainer.loop.status",
    "fit_loop": "write trainer.loop",
    "save_checkpoint": "checkpoints are saved between batches: in a run, call trainer.plugin('checkpoint').save_next(); of "
    "the weights after a run, torch.save(module.state_dict(), path)",
    "tune": "give auto_lr_find=True or auto_scale_batch_size=True to fit",
}
"""Attributes of Lightning's Trainer that Lightloop's lacks."""
MODULE = {
    "optimizers": "name the argument loop in training_step, and read loop.optimizers; see the page on several optimizers",
    "manual_backward": "name the argument manual in training_step, and call manual.backward(loss)",
    "lr_schedulers": "write self.loop.schedules",
    "toggle_optimizer": "with several optimizers, each trains its own parameters: Trainer(plugins=['toggle'])",
    "untoggle_optimizer": "with several optimizers, each trains its own parameters: Trainer(plugins=['toggle'])",
    "clip_gradients": "give Trainer(gradient_clip_val=...), or define configure_gradient_clipping",
    "automatic_optimization": "name the argument manual in training_step: optimization is manual then",
    "example_input_array": "pass an example to torch.onnx.export or torch.export.export",
    "to_onnx": "call torch.onnx.export(module, example, path)",
    "to_torchscript": "call torch.jit.script(module)",
    "on_gpu": "write self.device.type == 'cuda'",
    "fabric": "write self.loop",
    "summarize": "give Trainer(weights_summary='full')",
}
"""Attributes of LightningModule that lightloop.Module lacks."""
LOG = {
    "logger": "a metric for the bar alone cannot be had; leave it out",
    "add_dataloader_idx": "metrics of several loaders have the loader's name; give the loaders in a mapping to choose it",
    "enable_graph": "logged values are detached",
    "metric_attribute": "log the number that the metric object computes",
    "sync_dist_group": "means are over all ranks",
}
"""Arguments of LightningModule.log that mean nothing here."""
METHODS = {
    "configure_callbacks": "give Trainer(callbacks=[...])",
    "configure_model": "build the module in its constructor",
    "configure_sharded_model": "build the module in its constructor",
    "lr_scheduler_step": "make a scheduler whose step() does it; configure_optimizers says when it is stepped",
    "on_after_batch_transfer": "do it in training_step and validation_step, or in a plugin's before_batch",
    "on_before_batch_transfer": "do it in the data set or its collate_fn, or in transfer_batch_to_device",
    "on_test_model_eval": "evaluation puts the module into eval mode and back",
    "on_test_model_train": "evaluation puts the module into eval mode and back",
    "on_validation_model_eval": "evaluation puts the module into eval mode and back",
    "on_validation_model_train": "evaluation puts the module into eval mode and back",
    "on_validation_model_zero_grad": "gradients of an open window are kept in a validation",
    "training_dataloader": "call it train_dataloader",
    "validation_dataloader": "call it val_dataloader",
}
"""Methods of LightningModule that nothing calls here."""
CALLED = (
    *(
        "training_step",
        "validation_step",
        "test_step",
        "predict_step",
        "forward",
        "configure_optimizers",
        "prepare_data",
    ),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "batch_size", "backward"),
    *("training_step_end", "validation_step_end", "test_step_end", "optimizer_step", "optimizer_zero_grad"),
    *("training_epoch_end", "validation_epoch_end", "test_epoch_end", "predict_epoch_end", "transfer_batch_to_device"),
    *("on_pre_performance_check", "on_post_performance_check", "configure_gradient_clipping", "get_progress_bar_dict"),
    *(name for name in vars(Callback) if not name.startswith("__")),
)
"""The methods of a module that the loop or a plugin calls."""
LIKE = 0.9
"""How much alike two names are, from 0 to 1, of which one is taken for a misspelling of the other."""


class FamiliarNames(Plugin):
    """Say what to write in place of a name of Lightning's that Lightloop does not have: an option, an attribute, an argument.

    A method of the module that Lightning would call and nothing calls here is warned of, and so is one whose name nearly
    is that of a method that is called. What has a meaning here works under its name, without this plugin.
    """

    name = "familiar_names"
    tags = ("watches",)
    default = True
    ranks = "main"
    hints: ClassVar[Mapping[str, str]] = {
        **{f"Trainer.{name}": instead for name, instead in {**OPTIONS, **ATTRIBUTES}.items()},
        **{f"Module.{name}": instead for name, instead in MODULE.items()},
        **{f"log.{name}": instead for name, instead in LOG.items()},
    }

    @hookimpl
    def setup(self, loop: Loop) -> None:
        for name in own_methods(loop.module):
            where = f"{loop.module_name}.{name}"
            if name in METHODS:
                warn(f"{where} is never called: {METHODS[name]}")
            elif name not in CALLED and (near := difflib.get_close_matches(name, CALLED, n=1, cutoff=LIKE)):
                warn(f"{where} is never called by Lightloop. Did you mean {near[0]!r}?")


def own_methods(module: nn.Module) -> Iterator[str]:
    """The public methods that the user's classes give ``module``; none of a LightningModule, whose hooks are called."""
    kinds = type(module).__mro__
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    own = [] if packages & {"lightning", "pytorch_lightning"} else [kind for kind in kinds if is_users(kind)]
    methods = (
        name for kind in own for name, value in vars(kind).items() if callable(value) and not name.startswith("_")
    )
    yield from dict.fromkeys(methods)


def is_users(kind: type) -> bool:
    """Whether a class of a module is neither Lightloop's nor torch's."""
    return kind not in (Module, object) and kind.__module__.partition(".")[0] != "torch"
