"""Train on a device of XLA, such as a TPU."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from lightloop import Loop, hookimpl, option
from lightloop.toolkit import warn
from lightloop_plugins.accelerators._device.place import Device
from lightloop_plugins.accelerators._launcher.environment import environment
from lightloop_plugins.accelerators._xla import SPMD, Compilations, engine, seed_of_torch

NOW = "accelerator='xla', and for all cores of the machine strategy='xla_spmd' as well"
"""What to write for ``tpu_cores``."""


class Xla(Device):
    """Train on the device of PyTorch/XLA: ``accelerator="xla"``.

    XLA notes down what is computed and runs it as one program. This plugin ends the program after each batch, and after
    each piece of one, before anybody looks at its results; so the program does not grow with the window, and values that
    are read afterwards are there already. Nothing is read in between.

    Random numbers on the device are a stream of their own. It begins where torch's are when the run begins, so that
    ``seed`` seeds it; evaluation leaves it as it was; checkpoints keep it.

    One process trains on one device, or on all of them with ``strategy="xla_spmd"``. Several processes, or several
    replicas in one, are refused, for nothing would bring their gradients together.
    """

    name = "xla"
    state = ("_random",)
    transient = ("_xla", "_compilations", "syncs", "compilations")

    shapes: int = option(
        4,
        "Warn after this many batches, beyond the first steps, had new shapes that XLA had to compile for.",
        enables=False,
    )

    cores: Any = option(
        None,
        "Deprecated: number of TPU cores, or a list with the index of one; 0 is off.",
        flag="tpu_cores",
        switch=True,
        aliases={"num_tpu_cores": lambda cores: cores, "use_tpu": lambda use: 1 if use else None},
    )

    def validate(self) -> None:
        super().validate()
        if self.cores:
            warn(f"'tpu_cores' is now {NOW}", DeprecationWarning)
        if self.shapes < 1:
            raise self.invalid("shapes", "a whole number from 1")
        self._xla: ModuleType | None = None
        self._random: int | None = None
        self._compilations: Compilations | None = None
        self.syncs = 0
        """How many programs have been ended in the last fit."""
        self.compilations = 0
        """How many were compiled in it."""

    def device(self) -> torch.device:
        xla, runtime = engine(), engine("torch_xla.runtime")
        place = environment()
        if place is not None and place.size > 1 and runtime.process_count() == 1:
            raise RuntimeError(
                f"{place.launcher} has started {place.size} processes, and to XLA each is alone: their gradients would never "
                "be brought together. Start one process, and use strategy='xla_spmd' for all devices of it"
            )
        if runtime.world_size() > 1:
            raise RuntimeError(
                f"this is one of {runtime.world_size()} replicas that torch_xla.launch has started, which is not supported: "
                "start one process, and use strategy='xla_spmd' for all devices of it"
            )
        device: torch.device = xla.device()
        return device

    @hookimpl
    def setup(self, loop: Loop) -> None:
        shared = any(SPMD in plugin.tags for plugin in loop.plugins)
        if self.cores not in (None, 1, "1") and not isinstance(self.cores, (list, tuple)) and not shared:
            raise ValueError(f"tpu_cores={self.cores!r} is now {NOW}")
        if shared and not engine("torch_xla.runtime").is_spmd():
            engine("torch_xla.runtime").use_spmd()  # while no tensor is on a device yet
        super().setup(loop)
        self._xla = engine()
        self._xla.manual_seed(seed_of_torch())
        self.syncs = self.compilations = 0
        self._compilations = Compilations(self.shapes)

    @hookimpl(wrapper=True)
    def select_optimizers(self, loop: Loop) -> Generator[None, Sequence[int | None], Sequence[int | None]]:
        if loop.piece_idx:
            self.sync()
        return (yield)

    @hookimpl(tryfirst=True)
    def after_batch(self, loop: Loop) -> None:
        self.sync()
        assert self._compilations is not None
        self._compilations.look(loop.batch, loop.global_step)
        self.compilations = self._compilations.count

    @hookimpl(tryfirst=True)
    def after_epoch(self, loop: Loop) -> None:
        self.sync()  # windows that the end of the epoch has closed

    @hookimpl
    def before_evaluation(self, loop: Loop) -> None:
        self._random = engine("torch_xla.core.xla_model").get_rng_state()

    @hookimpl(tryfirst=True)
    def after_evaluation_batch(self, loop: Loop) -> None:
        self.sync()

    @hookimpl
    def after_evaluation(self, loop: Loop) -> None:
        if self._random is not None:
            engine("torch_xla.core.xla_model").set_rng_state(self._random)
        self._random = None

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        super().teardown(loop)
        self._xla = self._compilations = None

    def sync(self) -> None:
        """End the program that has been noted down, and let it run."""
        assert self._xla is not None
        self._xla.sync()
        self.syncs += 1

    def state_dict(self) -> dict[str, Any]:
        return {} if self._xla is None else {"random": engine("torch_xla.core.xla_model").get_rng_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._xla is not None and "random" in state:
            engine("torch_xla.core.xla_model").set_rng_state(state["random"])
