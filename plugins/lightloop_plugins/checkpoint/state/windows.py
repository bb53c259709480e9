"""Open windows and running metrics as plain trees, and back."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lightloop import Loop, Window
from lightloop.toolkit import Running

FIELDS = ("planned", "batches", "contributions", "weighted", "warned")


def take_window(window: Window) -> dict[str, Any]:
    """What is in an open window but its gradients."""
    return {
        **{name: getattr(window, name) for name in FIELDS},
        "weight": _out(window.weight),
        "moments": [[list(_detached(piece)), _detached(share)] for piece, share in window.replays],
    }


def apply_window(window: Window, saved: Mapping[str, Any], device: torch.device) -> None:
    """Put back what :func:`take_window` took."""
    for name in FIELDS:
        setattr(window, name, saved[name])
    window.weight = _back(saved["weight"])
    window.replays = [(tuple(_back_at(piece, device)), _back_at(share, device)) for piece, share in saved["moments"]]


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


def take_metrics(loop: Loop) -> dict[str, Any]:
    """Every running metric, what was logged last, and the means of the epoch that has ended."""
    metrics = loop.metrics
    return {
        "step": {name: _take_running(running) for name, running in metrics.step.items()},
        "epoch": {name: _take_running(running) for name, running in metrics.epoch.items()},
        "latest": {name: _out(value) for name, value in metrics.latest.items()},
        "updates": dict(metrics.updates),
        "wholes": dict(metrics.wholes),
        "on_bar": sorted(metrics.on_bar),
        "means": {name: _out(value) for name, value in loop.epoch_metrics.items()},
    }


def apply_metrics(loop: Loop, saved: Mapping[str, Any]) -> None:
    """Put back what :func:`take_metrics` took."""
    metrics = loop.metrics
    metrics.step = {name: _running(one) for name, one in saved["step"].items()}
    metrics.epoch = {name: _running(one) for name, one in saved["epoch"].items()}
    metrics.latest = {name: _back(value) for name, value in saved["latest"].items()}
    metrics.updates = dict(saved["updates"])
    metrics.wholes = dict(saved.get("wholes", {}))
    metrics.on_bar = set(saved["on_bar"])
    loop.epoch_metrics = {name: _back(value) for name, value in saved.get("means", {}).items()}


def _take_running(running: Running) -> dict[str, Any]:
    values, weights = [value for value, _ in running.pairs], [weight for _, weight in running.pairs]
    more = {"name": running.name, "folded": running.folded, "even": running.even}
    return {"reduce": running.reduce, "values": _pack(values), "weights": _pack(weights), **more}


def _running(saved: Mapping[str, Any]) -> Running:
    pairs = zip(_unpack(saved["values"]), _unpack(saved["weights"]), strict=True)
    name, folded, even = saved.get("name", ""), saved.get("folded", 1), saved.get("even", False)
    return Running(saved["reduce"], pairs, name=name, folded=folded, even=even)


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
    if saved["tensor"].numel() != 1:
        raise ValueError(f"a number has the shape {list(saved['tensor'].shape)}")
    return saved["tensor"].clone().to(_device(saved["device"]))


def _device(name: str) -> torch.device:
    """The device if there is such a one here, the CPU otherwise."""
    device = torch.device(name)
    here = torch.accelerator.current_accelerator()
    return device if here is not None and device.type == here.type else torch.device("cpu")
