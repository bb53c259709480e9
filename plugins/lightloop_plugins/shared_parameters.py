"""Keep the gradients of several optimizers apart for parameters that they share."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor

from lightloop import Loop, Plugin, hookimpl
from lightloop.toolkit import parameters_of


class SharedParameters(Plugin):
    """Let each optimizer see only the gradients of its own windows for parameters that several optimizers update.

    A parameter has one ``grad``. Where windows hold several batches and optimizers share parameters, each would step
    with the sum of all their gradients, or lose what another's zero_grad drops. It bows out where none is shared, or one loss is for all of them.
    """

    name = "shared_parameters"
    default = True
    state = ("_holder", "_aside")
    transient = ("_shared",)

    def validate(self) -> None:
        self._shared: list[tuple[Tensor, list[int]]] = []
        """The shared parameters, each with the optimizers that have it."""
        self._holder: list[int | None] = []
        """Whose gradient is in the ``grad`` of each."""
        self._aside: dict[tuple[int, int], Tensor] = {}
        """The other gradients, by parameter and optimizer."""

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self.validate()
        owners: dict[Tensor, list[int]] = {}
        for index, optimizer in enumerate(loop.optimizers):
            for parameter in dict.fromkeys(parameters_of(optimizer)):
                owners.setdefault(parameter, []).append(index)
        self._shared = [(parameter, indices) for parameter, indices in owners.items() if len(indices) > 1]
        self._holder = [None] * len(self._shared)
        if not self._shared or len(loop.windows) < 2:
            loop.opt_out(self)

    @hookimpl(wrapper=True)
    def forward(self, loop: Loop) -> Generator[None, Any, Any]:
        index = loop.optimizer_idx
        for which, (_, indices) in enumerate(self._shared):
            if index in indices:
                self._place(which, index)
        return (yield)

    @hookimpl(wrapper=True)
    def zero_grad(self, loop: Loop) -> Generator[None, Any, Any]:
        answer = yield
        if not loop.replaying:
            self._rest()
        return answer

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        self._rest()

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self.validate()

    def state_dict(self) -> dict[str, Any]:
        aside = [{"parameter": p, "optimizer": o, "gradient": grad} for (p, o), grad in self._aside.items()]
        return {"holder": list(self._holder), "aside": aside}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._holder = list(state["holder"])
        self._aside = {
            (each["parameter"], each["optimizer"]): each["gradient"].to(self._shared[each["parameter"]][0].device)
            for each in state["aside"]
        }

    def _rest(self) -> None:
        """Put in place what the first of the open windows has, since an epoch's end closes them in that order."""
        for which, (parameter, indices) in enumerate(self._shared):
            holder = self._holder[which]
            waiting = [i for i in indices if (which, i) in self._aside or (i == holder and parameter.grad is not None)]
            if waiting:
                self._place(which, waiting[0])

    def _place(self, which: int, index: int | None) -> None:
        parameter, holder = self._shared[which][0], self._holder[which]
        if index is None or index == holder:
            return
        if holder is not None and parameter.grad is not None:
            self._aside[which, holder] = parameter.grad
        parameter.grad = self._aside.pop((which, index), None)
        self._holder[which] = index
