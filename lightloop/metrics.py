"""Logged values: kept on their device, and fetched all at once when they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from lightloop.world import World

K = TypeVar("K")
Number = int | float | Tensor
N = TypeVar("N", float, Number)
Reduce = Literal["mean", "sum", "min", "max", "last"]

REDUCES: tuple[str, ...] = get_args(Reduce)

FOLD = 256
"""After so many values a running value is folded into one, so that memory stays flat."""


class Running:
    """A metric accumulated over batches, reduced only when it is read."""

    __slots__ = ("even", "folded", "name", "pairs", "reduce")

    def __init__(
        self,
        reduce: Reduce = "mean",
        pairs: Iterable[tuple[Number, Number]] = (),
        *,
        name: str = "",
        folded: int = 1,
        even: bool = False,
    ) -> None:
        self.name = name
        """The name under which it was logged; ``<name>_step`` and ``<name>_epoch`` belong to one metric."""
        self.reduce: Reduce = reduce
        self.pairs: list[tuple[Number, Number]] = list(pairs)
        """``(value, weight)`` of each batch; nothing is computed before the metric is read."""
        self.folded = folded
        """How many batches are in the first pair."""
        self.even = even
        """Whether each batch counts as one, because the weight of some batch is not known."""

    def add(self, value: Number, weight: Number | None = 1) -> None:
        """Add a scalar; values are folded into one now and then, so that memory stays constant over an epoch.

        With a weight of None, which is one that is not known, all batches count alike from the first one on.
        """
        if weight is None or self.even:
            if not self.even:
                self.even = True
                self.pairs = [(value, 1 if n else self.folded) for n, (value, _) in enumerate(self.pairs)]
            weight = 1
        self.pairs.append((value, weight))
        if len(self.pairs) >= FOLD:
            total, weight = self.parts()
            self.folded += len(self.pairs) - 1
            self.pairs = [(_mean(total, weight) if self.reduce == "mean" else total, weight)]

    def copy(self) -> Running:
        """Return an independent copy with the same values."""
        return Running(self.reduce, self.pairs, name=self.name, folded=self.folded, even=self.even)

    def parts(self) -> tuple[Number, Number]:
        """Return ``(total, weight)``: a mean is their quotient; any other metric is the total."""
        if self.reduce == "last":
            return self.pairs[-1][0], 1
        values = _stack([value for value, _ in self.pairs])
        if self.reduce == "mean":
            plain = [weight for _, weight in self.pairs]
            weights = _stack(plain, like=values)
            known = not any(isinstance(weight, Tensor) for weight in plain)
            return _sum(_times(values, weights)), sum(plain) if known else _sum(weights)
        if isinstance(values, Tensor):
            return getattr(values, self.reduce)(), 1
        builtin: dict[str, Callable[..., Number]] = {"sum": sum, "min": min, "max": max}
        return builtin[self.reduce](values), 1

    def value(self) -> Number:
        """Return the current value; a tensor if any logged value was one."""
        if len(self.pairs) == 1:
            return self.pairs[0][0]
        total, weight = self.parts()
        return _mean(total, weight) if self.reduce == "mean" else total


class Metrics:
    """The logged metrics: of the current step, of the epoch, and the latest value of each.

    Logged for both step and epoch, a metric ``x`` is ``x_step`` in the step's row and ``x_epoch`` in the epoch's; ``x`` is
    the step's value while the epoch lasts, and the epoch's at its end. What is logged for the epoch alone has no value
    before the end.
    """

    def __init__(self) -> None:
        self.step: dict[str, Running] = {}
        """Since the last applied step, by name."""
        self.epoch: dict[str, Running] = {}
        """Since the epoch or the pass over evaluation data began, by name."""
        self.latest: dict[str, Number] = {}
        """The last value of every metric, of any stage; what was logged for an epoch is in it once that is over."""
        self.updates: dict[str, int] = {}
        """How often each of :attr:`latest` has been given a value; a monitor can tell a fresh value from a stale one."""
        self.wholes: dict[str, str] = {}
        """What the epoch's value is called of each metric that is logged for both step and epoch: ``x_epoch`` for ``x``."""
        self.on_bar: set[str] = set()
        """The names that progress bars show."""

    def log(
        self,
        name: str,
        value: Number,
        *,
        step: bool,
        epoch: bool,
        bar: bool = False,
        reduce: Reduce = "mean",
        weight: Number | None = 1,
        copy: bool = True,
        step_name: str | None = None,
        epoch_name: str | None = None,
    ) -> None:
        """Add a value to a metric: a number, or a one-element tensor, which stays on its device.

        What the values of the step and of the epoch are called, if it is not the name, is by default ``<name>_step`` and
        ``<name>_epoch`` where it is logged for both.

        Raises:
            TypeError: if the name is no text, or the value no number.
            ValueError: if another metric has the name, there are several elements, or ``reduce`` is unknown.
        """
        # What is logged in each batch comes this way: as few calls as can be.
        if type(value) is Tensor and value.ndim == 0:
            value = value.detach() if value.requires_grad else value
            value = value.clone() if copy else value
        else:
            value = _scalar(name, value)
        if step:
            kept, updates = self.step, self.updates
            own = step_name or (f"{name}_step" if epoch else name)
            one = kept[own] if own in kept else self._open(kept, own, name, reduce)
            if one.name != name:
                self._claim(one, own, name)
            one.add(value, weight)
            self.latest[name] = value
            updates[name] = updates[name] + 1 if name in updates else 1
            if own != name:
                self.latest[own] = value
                updates[own] = updates[own] + 1 if own in updates else 1
        if epoch:
            kept, whole = self.epoch, epoch_name or (f"{name}_epoch" if step else name)
            one = kept[whole] if whole in kept else self._open(kept, whole, name, reduce)
            if one.name != name:
                self._claim(one, whole, name)
            one.add(value, weight)
        if bar:
            self.on_bar.add(name)

    def put(self, name: str, value: Number) -> None:
        """Set the latest value of a metric."""
        self.latest[name] = value
        self.updates[name] = self.updates.get(name, 0) + 1

    def monitored(self, name: str) -> tuple[int, Number | None]:
        """Return how often the metric was set, and its latest value (the epoch's, if it has one), for monitors."""
        name = self.wholes.get(name, name)
        return self.updates.get(name, 0), self.latest.get(name)

    def names(self) -> list[str]:
        """Return the names of all logged metrics, for messages."""
        return sorted({*self.latest, *self.epoch})

    def take_epoch(self, world: World, keep: bool = True) -> dict[str, float]:
        """Return the epoch's metrics over all ranks as numbers, and begin a new epoch.

        They become the latest ones if ``keep``; a sanity check's do not.
        """
        running, self.epoch = self.epoch, {}
        numbers, logged_as = _united(running, world)
        for name, number in numbers.items() if keep else ():
            self.put(name, number)
            if logged_as[name] != name:
                self.put(logged_as[name], number)
        return numbers

    def take_step(self) -> dict[str, float]:
        """Return this rank's metrics of the step as numbers, each the mean over its window, fetched together."""
        return fetch({name: running.value() for name, running in self.step.items()})

    def now(self) -> dict[str, Number]:
        """Return the current value of each metric: the latest, or the running mean of an unfinished epoch or pass."""
        return {**self.latest, **{name: running.value() for name, running in self.epoch.items()}}

    def _claim(self, running: Running, kept_as: str, name: str) -> None:
        if running.name:
            raise _taken(kept_as, running.name, name)
        running.name = name  # it came from an older checkpoint, which does not say
        if kept_as != name and running is self.epoch.get(kept_as):
            self.wholes[name] = kept_as

    def _open(self, kept: dict[str, Running], kept_as: str, name: str, reduce: Reduce) -> Running:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a metric's name must be text; it is {name!r}")
        if reduce not in REDUCES:
            raise ValueError(f"metric {name!r}: reduce must be one of {', '.join(REDUCES)}; it is {reduce!r}")
        if kept is self.epoch and kept_as != name:
            self.wholes[name] = kept_as
        running = kept[kept_as] = Running(reduce, name=name)
        return running


def _taken(kept_as: str, other: str, name: str) -> ValueError:
    return ValueError(
        f"two metrics are called {kept_as!r}: one that is logged as {other!r} and one as {name!r}. What is logged with both "
        "on_step and on_epoch is kept as <name>_step and <name>_epoch: rename one of them"
    )


def fetch(values: Mapping[K, Number]) -> dict[K, float]:
    """Fetch ``values`` as numbers, integers exactly; this waits once per device, not once per value.

    A device without double precision is waited for once per dtype.
    """
    numbers = {name: float(value) for name, value in values.items() if not isinstance(value, Tensor)}
    together: dict[object, dict[K, Tensor]] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            exact = _exact(value.device) == torch.float64
            key = value.device if exact else (value.device, value.dtype)  # nothing there holds whole numbers and others
            together.setdefault(key, {})[name] = value if value.ndim == 0 else value.reshape(())
    for kept in together.values():
        parts = list(kept.values())
        if any(part.dtype != parts[0].dtype for part in parts):
            parts = [part.to(torch.float64) for part in parts]
        numbers |= dict(zip(kept, map(float, torch.stack(parts).tolist()), strict=True))
    return {name: numbers[name] for name in values}


def _exact(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point dtype that ``device`` supports."""
    return torch.float32 if device.type in ("mps", "xla") else torch.float64


def over_ranks(running: Mapping[str, Running], world: World) -> dict[str, float]:
    """Reduce each metric over the ranks of ``world`` that logged it, means by weight; all ranks get the same result."""
    return _united(running, world)[0]


def _united(running: Mapping[str, Running], world: World) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers, and under which name each was logged."""
    parts = {name: one.parts() for name, one in running.items()}
    numbers = fetch({(name, index): part for name, pair in parts.items() for index, part in enumerate(pair)})
    totals, weights = ({name: numbers[name, index] for name in parts} for index in (0, 1))
    kinds = {name: (one.reduce, one.name) for name, one in running.items()}
    if world.size > 1:
        gathered = world.gather((totals, weights, kinds))
        kinds = _same_kinds([each for *_, each in gathered])
        names = dict.fromkeys(name for each, *_ in gathered for name in each)
        totals = {name: _over(kinds[name][0], [each[name] for each, *_ in gathered if name in each]) for name in names}
        weights = {name: sum(each[name] for _, each, _ in gathered if name in each) for name in names}
    means = {name: _mean(total, weights[name]) if kinds[name][0] == "mean" else total for name, total in totals.items()}
    return means, {name: kinds[name][1] for name in means}


def _same_kinds(ranks: list[dict[str, tuple[Reduce, str]]]) -> dict[str, tuple[Reduce, str]]:
    """How each metric of any rank is reduced, and under which name it was logged."""
    kinds: dict[str, tuple[Reduce, str]] = {}
    for name, kind in (item for each in ranks for item in each.items()):
        if (one := kinds.setdefault(name, kind)[0]) != kind[0]:
            raise ValueError(f"metric {name!r} is logged with reduce={one!r} on some ranks and {kind[0]!r} on others")
    return kinds


def _over(reduce: Reduce, values: list[float]) -> float:
    if reduce == "last":
        return values[0]
    return min(values) if reduce == "min" else max(values) if reduce == "max" else sum(values)


def _mean(total: N, weight: N) -> N:
    """Return total / weight; NaN if the weight is zero."""
    return total / weight if isinstance(weight, Tensor) or weight else math.nan


def _scalar(name: str, value: Number) -> Number:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"metric {name!r} must be one number; it is a tensor of shape {tuple(value.shape)}. Log its mean, or each part"
            )
        return value.detach().clone().reshape(())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"metric {name!r} must be a number or a tensor of one element; it is {type(value).__name__}"
            ) from None
    return value


def _stack(values: list[Number], like: Tensor | list[Number] | None = None) -> Tensor | list[Number]:
    if isinstance(like, Tensor):
        if not any(isinstance(value, Tensor) for value in values):
            return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)
        return torch.stack(
            [torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(()) for value in values]
        )
    first = next((value for value in values if isinstance(value, Tensor)), None)
    if first is None:
        return values
    kinds = {value.dtype if isinstance(value, Tensor) else None for value in values}
    if len(kinds) == 1 and first.dtype.is_floating_point:
        kind = torch.promote_types(first.dtype, torch.float32)  # sums of half precision would be coarse
    else:
        kind = _exact(first.device)  # whole numbers and Python's would be coarse in single precision
    if all(isinstance(value, Tensor) and value.dtype == kind and value.device == first.device for value in values):
        return torch.stack(values)  # type: ignore[arg-type]
    return torch.stack([torch.as_tensor(value, dtype=kind, device=first.device) for value in values])


def _times(values: Tensor | list[Number], weights: Tensor | list[Number]) -> Tensor | list[Number]:
    if isinstance(values, Tensor) and isinstance(weights, Tensor):
        return values * weights
    return [value * weight for value, weight in zip(values, weights, strict=True)]


def _sum(values: Tensor | list[Number]) -> Number:
    return values.sum() if isinstance(values, Tensor) else sum(values)
