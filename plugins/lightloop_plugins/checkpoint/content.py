"""Everything that a run needs to go on to the bit: taken at a boundary between batches, checked, put back in order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lightloop import Loop, Plugin, Running, Window
from lightloop_plugins.checkpoint import model
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.positions import position
from lightloop_plugins.checkpoint.random_state import take_global

COUNTERS = ("epoch", "batch_idx", "total_batches", "total_pieces", "global_step", "skipped_steps")
_BOUND = re.compile("[a-z_]+=")
"""How a stop is worded that comes from an option's value, ``max_steps=10 reached``: it is found again, or was raised."""
FIELDS = ("planned", "batches", "contributions", "weighted", "warned")


def take(loop: Loop, start: Mapping[str, Any] | None) -> dict[str, Any]:
    """The state of the run, as a plain tree whose tensors are the live ones; every rank calls it.

    Args:
        loop: the run, between two batches.
        start: what decided the order of the epoch, as it was before its first batch.
    """
    own = take_rank(loop, start)
    return {
        "module": model.take_module(loop),
        "optimizers": model.take_optimizers(loop),
        "schedulers": model.take_schedulers(loop),
        "plugins": {plugin.key: take_plugin(plugin) for plugin in loop.plugins},
        "counters": {**{name: getattr(loop, name) for name in COUNTERS}, "optimizer_steps": list(loop.optimizer_steps)},
        "stop_reasons": [] if loop.stopping else [each for each in loop.stop_reasons if not _BOUND.match(each)],
        "ranks": loop.world.gather(own) if loop.world.size > 1 else [own],
    }


def take_rank(loop: Loop, start: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each rank has of its own: open windows with their gradients, metrics, the loader's place, random numbers."""
    return {
        "windows": [_take_window(window) for window in loop.windows],
        "gradients": {name: p.grad for name, p in model.parameters(loop).items() if p.grad is not None},
        "metrics": _take_metrics(loop),
        "loader": position(loop.train_loader, loop.batch_idx, start),
        "random": take_global(),
    }


def take_plugin(plugin: Plugin) -> dict[str, Any]:
    """A plugin's state and the number of its form."""
    try:
        return {"version": type(plugin).state_version, "state": dict(plugin.state_dict())}
    except Exception as error:
        error.add_note(f"in state_dict of {plugin.label}, while saving a checkpoint")
        raise


class Restoration:
    """A state on its way into a run: checked whole at construction, when nothing has been changed yet.

    Raises:
        CheckpointError: if it is not of such a run.
    """

    def __init__(self, loop: Loop, state: Mapping[str, Any], what: str) -> None:
        self.loop, self.state = loop, state
        try:
            self.rank = state["ranks"][loop.world.rank if len(state["ranks"]) == loop.world.size else 0]
            model.check_module(loop, state["module"], what)
            model.check_optimizers(loop, state["optimizers"], what)
            model.check_schedulers(loop, state["schedulers"], what)
            self._check_counters(what)
            self.plugins = self._migrated(what)
            every = model.parameters(loop)
            own = {name: every[name] for name in self.rank["gradients"]}
            model.check_tensors(self.rank["gradients"], own, "gradient", what)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{what} lacks a part or has it in another form: {error!r}") from error

    def apply(self) -> None:
        """Weights, optimizers, schedulers and counters, in this order: a scheduler may set what an optimizer has."""
        loop, state = self.loop, self.state
        model.apply_module(loop, state["module"])
        model.apply_optimizers(loop, state["optimizers"])
        model.apply_schedulers(loop, state["schedulers"])
        for name in COUNTERS:
            setattr(loop, name, state["counters"][name])
        loop.optimizer_steps = list(state["counters"]["optimizer_steps"])

    def finish(self) -> None:
        """All of it, when every plugin is ready: what they set in before_fit is as it was; gradients come last."""
        self.apply()
        loop, every = self.loop, model.parameters(self.loop)
        for plugin in loop.plugins:
            if plugin.key in self.plugins:
                try:
                    plugin.load_state_dict(self.plugins[plugin.key])
                except Exception as error:
                    error.add_note(f"in load_state_dict of {plugin.label}, while a run was resumed")
                    raise
        for reason in self.state["stop_reasons"]:
            loop.stop(reason)
        _apply_metrics(loop, self.rank["metrics"])
        for window, saved in zip(loop.windows, self.rank["windows"], strict=True):
            _apply_window(window, saved, loop.device)
        for name, parameter in every.items():
            saved = self.rank["gradients"].get(name)
            parameter.grad = None if saved is None else saved.clone().to(parameter.device)

    def _check_counters(self, what: str) -> None:
        counters = self.state["counters"]
        for value in (*(counters[name] for name in COUNTERS), *counters["optimizer_steps"]):
            if type(value) is not int or value < 0:
                raise CheckpointError(f"{what}: a counter is {value!r}, which is no whole number from 0")
        for part in (counters["optimizer_steps"], self.rank["windows"]):
            if len(part) != len(self.loop.optimizers):
                raise CheckpointError(f"{what} is of {len(part)} optimizers; there are {len(self.loop.optimizers)}")

    def _migrated(self, what: str) -> dict[str, Mapping[str, Any]]:
        states = {}
        for plugin in self.loop.plugins:
            saved = self.state["plugins"].get(plugin.key)
            if saved is None:
                continue
            state, version, now = saved["state"], saved["version"], type(plugin).state_version
            if version > now:
                raise CheckpointError(
                    f"{what}: the state of {plugin.label} is of version {version}; this one reads {now}"
                )
            if version < now:
                state = type(plugin).migrate_state(state, version)
            states[plugin.key] = state
        return states


def _take_window(window: Window) -> dict[str, Any]:
    return {
        **{name: getattr(window, name) for name in FIELDS},
        "weight": _out(window.weight),
        "moments": [list(_detached(moment)) for moment in window.moments],
    }


def _apply_window(window: Window, saved: Mapping[str, Any], device: torch.device) -> None:
    for name in FIELDS:
        setattr(window, name, saved[name])
    window.weight = _back(saved["weight"])
    window.moments = [tuple(_back_at(part, device) for part in moment) for moment in saved["moments"]]


def _detached(value: Any) -> Any:
    """A moment without its graph, which a closure does not need: it goes forward again."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return type(value)(_detached(part) for part in value)
    if isinstance(value, dict):
        return {key: _detached(part) for key, part in value.items()}
    return _out(value) if isinstance(value, Fraction) else value


def _back_at(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.clone().to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_back_at(part, device) for part in value)
    if isinstance(value, dict):
        return {key: _back_at(part, device) for key, part in value.items()}
    return value


def _take_metrics(loop: Loop) -> dict[str, Any]:
    metrics = loop.metrics
    return {
        "step": {name: _take_running(running) for name, running in metrics.step.items()},
        "epoch": {name: _take_running(running) for name, running in metrics.epoch.items()},
        "latest": {name: _out(value) for name, value in metrics.latest.items()},
        "updates": dict(metrics.updates),
        "on_bar": sorted(metrics.on_bar),
    }


def _apply_metrics(loop: Loop, saved: Mapping[str, Any]) -> None:
    metrics = loop.metrics
    metrics.step = {name: _running(one) for name, one in saved["step"].items()}
    metrics.epoch = {name: _running(one) for name, one in saved["epoch"].items()}
    metrics.latest = {name: _back(value) for name, value in saved["latest"].items()}
    metrics.updates = dict(saved["updates"])
    metrics.on_bar = set(saved["on_bar"])


def _take_running(running: Running) -> dict[str, Any]:
    values, weights = [value for value, _ in running.pairs], [weight for _, weight in running.pairs]
    return {"reduce": running.reduce, "values": _pack(values), "weights": _pack(weights)}


def _running(saved: Mapping[str, Any]) -> Running:
    return Running(saved["reduce"], zip(_unpack(saved["values"]), _unpack(saved["weights"]), strict=True))


def _pack(numbers: list[Any]) -> dict[str, Any]:
    """Many scalar tensors as one."""
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    if len(tensors) == len(numbers) > 1 and len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1:
        return {"device": str(tensors[0].device), "stacked": torch.stack([tensor.detach() for tensor in tensors])}
    return {"numbers": [_out(number) for number in numbers]}


def _unpack(saved: Mapping[str, Any]) -> list[Any]:
    if "stacked" in saved:
        return list(saved["stacked"].clone().to(_device(saved["device"])).unbind())
    return [_back(number) for number in saved["numbers"]]


def _out(number: Any) -> Any:
    if isinstance(number, Tensor):
        return {"device": str(number.device), "tensor": number}
    return {"fraction": [number.numerator, number.denominator]} if isinstance(number, Fraction) else number


def _back(saved: Any) -> Any:
    if not isinstance(saved, Mapping):
        return saved
    if "fraction" in saved:
        return Fraction(*saved["fraction"])
    return saved["tensor"].clone().to(_device(saved["device"]))


def _device(name: str) -> torch.device:
    """The device if there is such a one here, the CPU otherwise."""
    device = torch.device(name)
    here = torch.accelerator.current_accelerator()
    return device if here is not None and device.type == here.type else torch.device("cpu")
