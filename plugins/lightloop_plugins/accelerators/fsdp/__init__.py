"""Train in several processes, each of which holds a shard of every parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from lightloop import Loop, hookimpl, option
from lightloop.toolkit import add_note
from lightloop_plugins._sharding import SHARDING
from lightloop_plugins.accelerators._launcher.environment import ProcessWorld, unexplained
from lightloop_plugins.accelerators._launcher.processes import Processes, no_line_search

if TYPE_CHECKING:
    from lightloop_plugins.accelerators.fsdp.route import Route


class Fsdp(Processes):
    """Shard parameters, gradients and optimizer states over all processes with torch's ``fully_shard`` (FSDP2).

    Every block is gathered when its forward or backward needs it, and what is in no block stays together. A block is a
    module of one of the classes named in ``blocks``, or, where none is named, each smallest module with at least
    ``min_size`` parameters. Parameters that are shared must be in one block.

    Held steps do not reduce: their gradients wait unsharded. Norms are those of the whole gradient, so that clipping is
    the same on all ranks. Under ``precision="bf16-mixed"`` parameters are gathered in bfloat16 and gradients are
    reduced in float32. Each forward concerns all ranks: evaluation, too, goes through equally many batches, and where samples
    do not divide into as many, some count twice, with a warning.

    All ranks must go through the same blocks, for each block is gathered from all of them. Before a step and after an
    evaluation they compare which they were, and others are an error. Where one rank gathers less than another, that comes
    too late: gloo ends processes, or waits until ``timeout``; then ``check_blocks`` names block and line.

    When the run ends well, the module has whole, plain parameters again, the same on each rank; meanwhile,
    :func:`whole_state` gives them. Each rank writes its own part of a checkpoint, and reads from it what is its part then,
    whatever the number of ranks that wrote it.
    """

    name = "fsdp"
    transient = ("_route", "_synced", "_waiting", "_half")

    blocks: tuple[str, ...] | list[str] = option(
        (), "Names of the module classes to shard as separate blocks.", enables=False
    )
    min_size: int = option(
        1_000_000, "Without blocks: number of parameters from which a module becomes a block of its own.", enables=False
    )

    check_blocks: bool = option(
        False,
        "Have ranks tell one another which block they are about to gather, so that a branch which not all of them take is an "
        "error that names it; each block then waits for all ranks.",
        enables=False,
    )

    def validate(self) -> None:
        super().validate()
        self._route: Route | None = None
        if self.min_size < 1:
            raise self.invalid("min_size", "a whole number of parameters from 1")
        self._synced = True  # whether backwards reduce now
        self._waiting = False  # whether there are gradients that none has reduced
        self._half = False  # whether parameters are gathered in bfloat16

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._synced, self._waiting = True, False
        if not self.meet(loop):
            loop.opt_out(self)
            return
        from lightloop_plugins.accelerators.fsdp.route import Route
        from lightloop_plugins.accelerators.fsdp.sharding import Parts, blocks_of, shard

        loop.world.in_lockstep = True
        blocks = list(blocks_of(loop.module, set(self.blocks), self.min_size))
        if missing := set(self.blocks) - {type(part).__name__ for part in (*blocks, loop.module)}:
            raise self.invalid("blocks", f"classes of which there are modules, and there is no {sorted(missing)[0]}")
        mesh = init_device_mesh(loop.device.type, (loop.world.size,))
        assert isinstance(loop.world, ProcessWorld)
        loop.stash[SHARDING] = Parts(self, loop.module, mesh, loop.world.new_group())
        self._half = any(
            each.group == "precision" and getattr(each, "mode", "") == "bf16-mixed" for each in loop.plugins
        )
        shard(loop.module, blocks, mesh, self._half)
        self._route = Route(loop.module, loop.world, self.check_blocks)

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        no_line_search(loop, self)
        if self._half:  # a held backward of torch's fails where there is a block that no forward has gathered yet
            from lightloop_plugins.accelerators.fsdp.sharding import gather_once

            gather_once(loop.module)

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        held = loop.held and not loop.replaying
        if self._synced == held and loop.optimizer_idx is not None:
            self._sync(loop.module, not held)

    @hookimpl
    def after_backward(self, loop: Loop) -> None:
        self._waiting = not self._synced

    @hookimpl
    def reduce_gradients(self, loop: Loop) -> None:
        self._compare()
        if self._waiting:  # a window is closed whose last backward was held
            self._sync(loop.module, True)
            self._waiting = False
            from lightloop_plugins.accelerators.fsdp.sharding import reduce_waiting

            reduce_waiting(loop.module)

    @hookimpl
    def after_evaluation(self) -> None:
        self._compare()

    @hookimpl
    def grad_norm(self, loop: Loop, norm_type: float) -> Tensor:
        norm = torch.nn.utils.get_total_norm([each for each in loop.gradients if each.numel()], norm_type)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    @hookimpl
    def on_error(self, loop: Loop, error: BaseException) -> None:
        super().on_error(loop, error)
        if self._route is not None and unexplained(error):
            add_note(
                error,
                "fsdp: if no rank has failed for a reason of its own, they went through different blocks, as by a branch in "
                "forward that goes by a rank's data: fsdp_check_blocks=True names it",
            )

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._route = None
        if SHARDING in loop.stash and not self._failed:
            from lightloop_plugins.accelerators.fsdp.sharding import make_whole

            make_whole(loop.module)
        super().teardown(loop)

    def _compare(self) -> None:
        if self._route is not None:
            self._route.compare()

    def _sync(self, module: nn.Module, on: bool) -> None:
        module.set_requires_gradient_sync(on)  # type: ignore[operator]
        self._synced = on
