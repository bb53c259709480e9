"""Data sources of a run in Lightning's style."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop_plugins.lightning.parts import bases, instances, is_imported, overrides

LOADERS = {
    "fit": "train_dataloader",
    "validate": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}
"""The method that gives a stage's data."""
STEP = "validation_step"


class LightningData(Plugin):
    """Read from a LightningDataModule, or from loaders that are given by Lightning's keywords.

    ``fit(module, datamodule)`` and ``fit(module, datamodule=datamodule)`` are the same. ``prepare_data`` is called on the
    main rank, ``setup(stage)`` on each, both before callbacks and module are set up; the state of the data module is kept.
    """

    name = "lightning_data"
    after = ("lightning", "accelerator", "strategy")
    before = ("callbacks", "validation", "checkpoint")
    state = ("_data",)

    datamodule: Any = option(None, "LightningDataModule that provides the loaders.", flag="datamodule")
    train_dataloaders: Any = option(
        None, "Training data; the same as the second argument of fit.", flag="train_dataloaders"
    )
    val_dataloaders: Any = option(
        None, "Validation data; the same as the third argument of fit.", flag="val_dataloaders"
    )
    dataloaders: Any = option(
        None, "Data to evaluate; the same as the second argument of validate, test or predict.", flag="dataloaders"
    )

    @classmethod
    def is_default(cls) -> bool:
        """Where the program has imported Lightning."""
        return is_imported()

    def validate(self) -> None:
        known = all(callable(getattr(self.datamodule, name, None)) for name in ("prepare_data", "setup"))
        if self.datamodule is not None and not known:
            raise self.invalid("datamodule", "a LightningDataModule")
        self._data: Any = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        data = self._data = find_datamodule(loop)
        fitting = loop.stage == "fit"
        for stage in ("fit", "validate") if fitting else (loop.stage,):
            keyword = "train_dataloaders" if stage == "fit" else "val_dataloaders" if fitting else "dataloaders"
            self._put(loop, stage, getattr(self, keyword))
        if fitting and isinstance(loop.module, bases("LightningModule")) and not overrides(loop.module, STEP):
            loop.eval_sources.pop("validate", None)  # Lightning lets data be that nothing is done with
        if data is None:
            loop.opt_out(self)
            return
        data.trainer = loop.trainer
        if loop.world.is_main:
            data.prepare_data()
        loop.world.barrier()
        data.setup(loop.stage)

    def _put(self, loop: Loop, stage: str, given: Any) -> None:
        """Let the loop ask what was given by keyword, then the data module, then the module, if that has written it."""
        name, data = LOADERS[stage], self._data
        source: Callable[[], Any] | None = None
        if given is not None:
            source = _always(given)
        elif data is not None and overrides(data, name):
            source = getattr(data, name)
        if source is not None and stage == "fit":
            loop.train_source = source
        elif source is not None:
            loop.eval_sources[stage] = source
        elif stage != "fit" and _is_inherited(loop, stage):
            del loop.eval_sources[stage]

    @hookimpl
    def on_error(self, loop: Loop, error: BaseException) -> None:
        if self._data is not None:
            self._data.on_exception(error)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._data is not None:
            self._data.teardown(loop.stage)
            self._data.trainer = None
        self._data = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._data is None else {"datamodule": self._data.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._data is not None and "datamodule" in state:
            self._data.load_state_dict(state["datamodule"])


def find_datamodule(loop: Loop) -> Any:
    """The LightningDataModule of the run: the option's, or the one in the place of loaders; None where there is none."""
    given = getattr(loop.trainer, "datamodule", None)
    source = loop.train_source if loop.stage == "fit" else loop.eval_sources.get(loop.stage)
    if given is None and source is not None and not hasattr(source, "__self__"):  # what the user handed over
        return next(iter(instances([source()], "LightningDataModule")), None)
    return given


def _is_inherited(loop: Loop, stage: str) -> bool:
    """Whether what would give the data of ``stage`` is the method that a module has from Lightning, which only raises."""
    source, name = loop.eval_sources.get(stage), LOADERS[stage]
    own = isinstance(loop.module, bases("LightningModule")) and getattr(source, "__self__", None) is loop.module
    return own and not overrides(loop.module, name)


def _always(data: Any) -> Callable[[], Any]:
    return lambda: data
