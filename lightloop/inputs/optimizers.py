"""Normalize the return value of a module's ``configure_optimizers``, in all its documented forms."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

Interval = Literal["step", "epoch", "batch"]

FORMS = (
    "an optimizer, a list of optimizers, ([optimizers], [lr_schedulers]), or a mapping with 'optimizer' and perhaps "
    "'lr_scheduler', or a list of such mappings"
)


@dataclass
class Schedule:
    """A learning-rate scheduler and when to step it."""

    scheduler: Any
    """Any object with ``step()`` and ``state_dict()``."""
    optimizer_idx: int = 0
    interval: Interval = "epoch"
    frequency: int = 1
    """Step it every so many intervals, counted over the whole run."""
    monitor: str | None = None
    """The metric that is passed to ``step(metric)``, as ReduceLROnPlateau wants."""
    strict: bool = True
    """Whether a monitored metric without a new value when a step is due is an error; if not, it is one warning."""
    name: str | None = None
    paused: bool = False
    """Whether it stands still for now, because somebody else sets the rates."""


@dataclass
class Setup:
    """The optimizers of a fit and their learning-rate schedulers."""

    optimizers: list[Optimizer] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    frequencies: list[int] = field(default_factory=list)
    """For how many windows in turn each optimizer steps; empty: all of them step in each."""
    by_hand: bool = False
    """Whether training_step goes backward and steps by itself."""


def read_setup(returned: Any, module: nn.Module) -> Setup:
    """Convert the return value of ``configure_optimizers`` to a :class:`Setup`.

    Accepted: None; an optimizer; a list of optimizers; ``(optimizers, schedulers)``; a mapping with ``optimizer`` and
    perhaps ``lr_scheduler`` and ``frequency``; a list of such mappings. A scheduler is an object or a mapping with
    ``scheduler`` and perhaps ``interval``, ``frequency``, ``monitor``, ``strict`` and ``name``.

    Raises:
        TypeError, ValueError: if it is none of these; the message says what was found.
    """
    parts, schedulers = _parts(returned)
    optimizers = [_optimizer(part) for part in parts]
    for part in parts:
        monitored = {"monitor": part["monitor"]} if "monitor" in part else {}
        schedulers += [{**monitored, **_mapping(each, "scheduler")} for each in _listed(part.get("lr_scheduler"))]
    if schedulers and not optimizers:
        raise ValueError("configure_optimizers returns an lr_scheduler but no optimizer")
    _check_optimizers(optimizers, module)
    return Setup(optimizers, [_schedule(entry, optimizers) for entry in schedulers], _frequencies(parts))


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether ``optimizer.step`` requires a closure, as LBFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def takes_closure(optimizer: Optimizer) -> bool:
    """Whether ``optimizer.step`` may evaluate the loss anew: it has room for a closure, and is not one of torch's that call it once."""
    step = type(optimizer).step
    return needs_closure(optimizer) or (
        "closure" in inspect.signature(step).parameters and not step.__module__.startswith("torch.optim.")
    )


def searches_line(optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` does a line search, evaluating loss and gradient as often as it needs, as LBFGS does."""
    return isinstance(optimizer, LBFGS)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that ``optimizer`` updates, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parts(returned: Any) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """A mapping for each optimizer, and one for each scheduler that was not returned with its optimizer."""
    if isinstance(returned, tuple) and len(returned) == 2 and all(isinstance(part, Sequence) for part in returned):
        optimizers, schedulers = returned
    else:
        optimizers, schedulers = _listed(returned), []
    return [_mapping(each, "optimizer") for each in optimizers], [_mapping(each, "scheduler") for each in schedulers]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {key: value}


def _optimizer(part: Mapping[str, Any]) -> Optimizer:
    _refuse_unknown(part, {"optimizer", "lr_scheduler", "frequency", "monitor"}, "configure_optimizers")
    optimizer = part.get("optimizer")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"configure_optimizers must return {FORMS}; found {optimizer!r}")
    return optimizer


def _frequencies(parts: Sequence[Mapping[str, Any]]) -> list[int]:
    frequencies = [part["frequency"] for part in parts if "frequency" in part]
    if frequencies and len(frequencies) != len(parts):
        raise ValueError(
            "configure_optimizers gives a frequency to some optimizers but not to all; give one to each or to none"
        )
    if any(type(every) is not int or every < 1 for every in frequencies):
        raise ValueError(
            f"the frequencies of configure_optimizers must be whole numbers from 1; they are {frequencies}"
        )
    return frequencies


def _schedule(given: Mapping[str, Any], optimizers: list[Optimizer]) -> Schedule:
    entry = {"scheduler": None, **given}
    known = {"scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau"}
    _refuse_unknown(entry, known, "lr_scheduler")
    scheduler, needs_metric = entry["scheduler"], entry.pop("reduce_on_plateau", False)
    if not hasattr(scheduler, "step") or isinstance(scheduler, type):
        raise TypeError(f"an lr_scheduler must have a step method; found {scheduler!r}")
    owner = getattr(scheduler, "optimizer", optimizers[0])
    index = next((index for index, optimizer in enumerate(optimizers) if optimizer is owner), None)
    if index is None:
        raise ValueError(
            f"the lr_scheduler {type(scheduler).__name__} is of an optimizer that configure_optimizers does not return"
        )
    schedule = Schedule(optimizer_idx=index, **entry)
    if schedule.interval not in get_args(Interval):
        raise ValueError(
            f"an lr_scheduler's interval must be one of {', '.join(get_args(Interval))}; it is {schedule.interval!r}"
        )
    if type(schedule.frequency) is not int or schedule.frequency < 1:
        raise ValueError(f"an lr_scheduler's frequency must be a whole number from 1; it is {schedule.frequency!r}")
    if (needs_metric or type(scheduler).__name__ == "ReduceLROnPlateau") and schedule.monitor is None:
        raise ValueError(
            "ReduceLROnPlateau needs a metric: return {'scheduler': ..., 'monitor': 'val_loss'} from configure_optimizers"
        )
    return schedule


def _refuse_unknown(entry: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(entry) - known, key=str):
        raise ValueError(f"{where} has the unknown key {unknown[0]!r}; the known ones are {', '.join(sorted(known))}")


def _check_optimizers(optimizers: list[Optimizer], module: nn.Module) -> None:
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise ValueError("configure_optimizers returns one optimizer twice: it would step twice in each window")
    own = {id(parameter) for parameter in module.parameters()}
    for optimizer in optimizers:
        if own and not any(id(parameter) in own for parameter in parameters_of(optimizer)):
            raise ValueError(
                f"{type(optimizer).__name__} has none of the parameters of {type(module).__name__}: training would change nothing. "
                "Build it from self.parameters() inside configure_optimizers"
            )
