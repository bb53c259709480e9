"""The Trainer, the entry point for users: it selects the live plugins, builds the loop and runs it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from lightloop.evaluation import STEPS, Evaluation, evaluate
from lightloop.exceptions import add_note, context
from lightloop.host.choosing import choose, tell
from lightloop.host.discovery import discover
from lightloop.host.found import hint
from lightloop.host.listing import Entry, Listing, from_environment
from lightloop.host.manager import Manager
from lightloop.host.plugin import Plugin
from lightloop.host.selection import absent
from lightloop.host.signature import OptionsSignature
from lightloop.inputs.signatures import defined
from lightloop.loop import Loop
from lightloop.metrics import fetch
from lightloop.module import Module
from lightloop.operations import manage
from lightloop.plugin_attributes import PluginAttributes
from lightloop.run_attributes import RunAttributes, idle_loop
from lightloop.state import HookRelay, Stage, Status
from lightloop.warning import warn
from lightloop.world import World

if TYPE_CHECKING:
    from lightloop.trainer_options import TrainerOptions
else:
    TrainerOptions = object

T = TypeVar("T")
LOADERS = {
    "fit": "train_dataloader",
    "validate": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}
"""The method of the module that returns the data of a stage when none is passed."""


@dataclass(frozen=True)
class Result:
    """The outcome of a fit."""

    status: Status
    """"finished", "stopped" (on request), or "interrupted"."""
    reason: str | None
    """Why the run stopped, if a stop was requested."""
    epoch: int
    """The number of finished epochs."""
    global_step: int
    """The number of applied optimizer steps."""
    metrics: dict[str, float]
    """The latest value of every metric."""
    disabled: dict[str, str] = field(default_factory=dict)
    """The plugins that were disabled because they failed, each with the error and its hook."""


class Trainer(RunAttributes, PluginAttributes, TrainerOptions):
    """Trains and evaluates modules with the selected plugins.

    Args:
        plugins: what to add to the default plugins or to remove: a name (``"ema"``), ``"-name"`` to remove one,
            ``"-*"`` to remove all plugins that are live by default,
            ``"package.module:Class"``, a Plugin class, or an instance. ``LIGHTLOOP_PLUGINS=ema,-progress`` in the
            environment adds to the list.
        options: every option of every installed plugin by its keyword: ``max_epochs=10``, ``gradient_clip_val=1.0`` …;
            ``lightloop plugins`` lists them. An option set to other than its default enables its plugin. A group or
            tag is a keyword too and selects its plugins: ``logger="tensorboard"``, ``logger=["csv", MyLogger()]``;
            False removes the default one.

    Raises:
        TypeError, ValueError: for an unknown or invalid option.
        PluginError, OrderError: for plugins that are missing, broken or in conflict.
    """

    if not TYPE_CHECKING:  # the stub of TrainerOptions has it, with each option

        def __init__(self, plugins: Sequence[Entry] = (), **options: Any) -> None:
            self._choose(plugins, options)

        __signature__ = OptionsSignature(discover)

    def _choose(self, plugins: Any, options: dict[str, Any]) -> None:
        if isinstance(plugins, (str, Plugin, type)):
            plugins = (plugins,)
        if not isinstance(plugins, Sequence):
            raise TypeError(f"plugins must be a list of plugins; it is {plugins!r}. Options are given by keyword")
        self._listed = tuple(plugins)
        self._options = options
        self._manager: Manager | None = self._chosen({})
        self.plugins = self._manager.plugins
        """The live plugins, in order."""
        self.loop: Loop | None = None
        """The latest run."""
        self.fit_result: Result | None = None
        """How the latest fit ended; other stages leave it as it is."""

    def __repr__(self) -> str:
        given = [*([f"plugins={list(self._listed)!r}"] if self._listed else [])]
        given += [f"{name}={reprlib.repr(value)}" for name, value in self._options.items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def fit(self, module: nn.Module | None = None, train: Any = None, val: Any = None, **options: Any) -> Result:
        """Train ``module``.

        Args:
            module: has ``training_step`` and ``configure_optimizers``.
            train: a DataLoader or any iterable of batches; by default the module's ``train_dataloader``.
            val: validation data, likewise, or several loaders in a list or mapping; by default the module's
                ``val_dataloader``.
            options: plugin options for this run only.

        Raises:
            TypeError, ValueError: if there is no training step, no data, or a loss that cannot be differentiated.
            BaseException: whatever the user's code or a plugin raised: the same object, with notes that say where.
        """
        module = _module_in(module, options)
        if defined(module, "training_step") is None:
            raise TypeError(
                f"{type(module).__name__} has no training_step: define training_step(self, batch, batch_idx)"
            )
        train_source = _source(module, "fit", train)
        if train_source is None:
            raise ValueError(
                f"nothing to train on: pass fit(module, train), or define {type(module).__name__}.train_dataloader"
            )
        if not module.training:
            warn(
                f"{type(module).__name__} is in eval mode and is trained in it; call .train() if that is not meant",
            )
        loop = self._loop(module, "fit", {"validate": _source(module, "validate", val)}, options)
        loop.train_source = train_source
        with torch.inference_mode(False), torch.enable_grad():
            self._run(loop, loop.fit)
        latest, disabled = fetch(loop.metrics.latest), loop.hook.disabled
        self.fit_result = Result(loop.status, loop.stop_reason, loop.epoch, loop.global_step, latest, disabled)
        return self.fit_result

    def validate(self, module: nn.Module | None = None, data: Any = None, **options: Any) -> dict[str, float]:
        """Run ``validation_step`` over ``data`` and return the metrics; no fit hook is called."""
        return self._evaluate(module, "validate", data, options).metrics

    def test(self, module: nn.Module | None = None, data: Any = None, **options: Any) -> dict[str, float]:
        """Run ``test_step`` over ``data`` and return the metrics."""
        return self._evaluate(module, "test", data, options).metrics

    def predict(self, module: nn.Module | None = None, data: Any = None, **options: Any) -> list[Any]:
        """Run ``predict_step`` (or ``forward``) over ``data``; return its outputs per batch, by loader if several."""
        outputs = self._evaluate(module, "predict", data, options).outputs
        return outputs[0] if len(outputs) == 1 else outputs

    def explain(self) -> str:
        """Return, for each hook in the order of a run, which plugins are called, in which order, and why."""
        return manager_of(self).explain()

    def _chosen(self, options: Mapping[str, Any]) -> Manager:
        found = discover()
        manager = tell(choose(found, self._listed, {**self._options, **options}, manage, from_environment()))
        self._arguments = {
            argument: f"plugin {name!r} offers it and is not in this run"
            for name, each in found.items()
            for argument in (each.plugin.arguments if each.plugin else ())
        }
        return manager

    def _loop(
        self,
        module: nn.Module,
        stage: Stage,
        sources: Mapping[str, Callable[[], Any] | None],
        options: Mapping[str, Any],
    ) -> Loop:
        if self._running and self._latest.trainer is self:  # a copy only knows of the run
            # The plugins would be set up anew, and taken down in the midst of it.
            raise RuntimeError(
                f"this Trainer is in the middle of a run, so it cannot {stage} as well: use another Trainer for that; in a "
                'plugin, evaluate(loop, "validate") runs the validation of the fit'
            )
        manager = self._chosen(options) if options else manager_of(self)
        self.loop = Loop(module, cast(HookRelay, manager.relay()), manager.plugins, stage)
        self.loop.trainer = self
        self.loop.absent_arguments |= self._arguments
        self.loop.eval_sources = {name: source for name, source in sources.items() if source is not None}
        return self.loop

    def _evaluate(self, module: nn.Module | None, stage: Stage, data: Any, options: dict[str, Any]) -> Evaluation:
        module = _module_in(module, options)
        source = _source(module, stage, data)
        if source is None:
            raise ValueError(
                f"no data to {stage}: pass {stage}(module, data), or define {type(module).__name__}.{LOADERS[stage]}"
            )
        if stage != "predict" and defined(module, STEPS[stage]) is None:
            raise TypeError(
                f"{type(module).__name__} has no {STEPS[stage]}: define {STEPS[stage]}(self, batch, batch_idx)"
            )
        loop = self._loop(module, stage, {stage: source}, options)
        return self._run(loop, lambda: evaluate(loop, stage))

    def _run(self, loop: Loop, work: Callable[[], T]) -> T:
        begun: list[object] = []
        endings = ("after_fit", "teardown") if loop.stage == "fit" else ("teardown",)
        with _known_to(loop.module, loop):
            try:
                loop.hook.begin(loop.plugins, begun, lambda: loop.world.is_main, loop=loop)
                result = work()
                if loop.stage != "fit":
                    loop.status = "finished"
            except BaseException as error:
                if loop.stage == "fit":  # a pass of evaluation has said where it was
                    add_note(error, f"at {loop.where()}")
                if meant := _meant(error):
                    add_note(error, meant)
                loop.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                loop.hook.conclude("on_error", *endings, error=error, among=begun, loop=loop)
                raise
            loop.hook.conclude(*endings, among=begun, loop=loop)
        return result

    def __getstate__(self) -> dict[str, Any]:
        if self.loop is None or not self._running:
            return {**vars(self), "loop": None, "_manager": None}
        # What plugins hold in the midst of a run is of this process: the copy chooses its own.
        return {**vars(self), "loop": _place_of(self.loop), "plugins": None, "_manager": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.loop is not None:
            self._manager = self._chosen({})
            self.loop.plugins = self.plugins = self._manager.plugins


def manager_of(trainer: Trainer) -> Manager:
    """Return the manager of the live plugins of ``trainer``; rebuild it in a copy, or if the plugins changed."""
    manager = trainer._manager
    if manager is None or manager.plugins != trainer.plugins:
        found = discover()
        listed = Listing(found, trainer._listed).classes
        manager = trainer._manager = manage(trainer.plugins, absent(trainer.plugins, found, listed))
    return manager


def _meant(error: BaseException) -> str:
    """What to write in place of an attribute that a module lacks; empty where nothing is known of it."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, Module):
        return ""
    return hint(f"Module.{error.name}", discover().values()).strip()


def _module_in(module: Any, options: dict[str, Any]) -> nn.Module:
    """The module that is passed, also as ``model=``."""
    if module is None:
        module = options.pop("model", None)
    if not isinstance(module, nn.Module):
        name = getattr(module, "__name__", "")
        what = f"the class {name}; make one, {name}(...)" if isinstance(module, type) else reprlib.repr(module)
        raise TypeError(f"module must be a torch.nn.Module; it is {what}")
    return module


def _source(module: nn.Module, stage: Stage, data: Any) -> Callable[[], Any] | None:
    if data is not None:
        return lambda: data
    own = getattr(module, LOADERS[stage], None)
    if own is None:
        return None
    return own if callable(own) else lambda: own


def _place_of(loop: Loop) -> Loop:
    """Return a picklable copy of ``loop``: its counters, device, rank and world size, without module and data."""
    place = idle_loop(loop.stage)
    place.device, place.world = loop.device, World()
    for source, copy in ((loop, place), (loop.world, place.world)):
        for name, value in vars(source).items():
            if isinstance(value, (bool, int, str)):
                setattr(copy, name, value)
    return place


@context
def _known_to(module: nn.Module, loop: Loop) -> Iterator[None]:
    before = [(part, part._loop) for part in module.modules() if isinstance(part, Module)]  # a user may have wrapped it
    for part, _ in before:
        object.__setattr__(part, "_loop", loop)
    try:
        yield
    finally:
        loop.trainer = None  # in a cycle, the workers of loaders would wait for the garbage collector, and it for them
        for part, previous in before:
            object.__setattr__(part, "_loop", previous)
