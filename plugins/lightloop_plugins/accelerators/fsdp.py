"""Train in several processes, each of which keeps a part of every parameter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from lightloop import Loop, defined, hookimpl, needs_closure, option, scale_
from lightloop_plugins._sharding import SHARDING
from lightloop_plugins.accelerators._distributed import ProcessWorld
from lightloop_plugins.accelerators._processes import Processes

MARKS = (STATE_KEY, REGISTRY_KEY, "_is_fsdp_managed_module", "_fsdp_use_orig_params")
"""What ``fully_shard`` leaves in a module; with it, the module could not be sharded again."""
STEPS = ("training_step", "validation_step", "test_step", "predict_step")


class Fsdp(Processes):
    """Shard parameters, gradients and optimizer states over all processes with torch's ``fully_shard`` (FSDP2).

    Every block is gathered when its forward or backward needs it, and what is in no block stays together. A block is a
    module of one of the classes named in ``blocks``, or, where none is named, each smallest module with at least
    ``min_size`` parameters. Parameters that are shared must be in one block.

    Held steps do not reduce: their gradients wait unsharded. Norms are those of the whole gradient, so that clipping is
    the same on all ranks. Under ``precision="bf16-mixed"`` parameters are gathered in bfloat16 and gradients are
    reduced in float32. Each forward concerns all ranks: evaluation, too, goes through equally many batches, and where samples
    do not divide into as many, some count twice, with a warning.

    When the run ends well, the module has whole, plain parameters again, the same on each rank; meanwhile,
    :func:`whole_state` gives them. Each rank writes its own part of a checkpoint, and reads from it what is its part then,
    whatever the number of ranks that wrote it.
    """

    name = "fsdp"

    blocks: tuple[str, ...] | list[str] = option(
        (), "Names of the classes whose modules are sharded each by itself.", enables=False
    )
    min_size: int = option(
        1_000_000, "Without blocks: how many parameters make a module one that is sharded by itself.", enables=False
    )

    def check(self) -> None:
        super().check()
        if self.min_size < 1:
            raise self.refuse("min_size", "a whole number of parameters from 1")
        self._synced = True  # whether backwards reduce now
        self._waiting = False  # whether there are gradients that none has reduced

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._synced, self._waiting = True, False
        if not self.meet(loop):
            loop.leave_out(self)
            return
        loop.world.in_lockstep = True
        modules = [*blocks_of(loop.module, set(self.blocks), self.min_size), loop.module]
        if missing := set(self.blocks) - {type(part).__name__ for part in modules}:
            raise self.refuse("blocks", f"classes of which there are modules, and there is no {sorted(missing)[0]}")
        policy = inner = MixedPrecisionPolicy()
        if any(plugin.group == "precision" and getattr(plugin, "mode", "") == "bf16-mixed" for plugin in loop.plugins):
            inner = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            policy = replace(inner, cast_forward_inputs=False)  # training_step has the batch as it is
        mesh = init_device_mesh(loop.device.type, (loop.world.size,))
        assert isinstance(loop.world, ProcessWorld)
        loop.stash[SHARDING] = Parts(self, loop.module, mesh, loop.world.new_group())
        for part in modules:
            fully_shard(part, mesh=mesh, mp_policy=policy if part is loop.module else inner)
        for name in STEPS:
            if (step := defined(loop.module, name)) is not None:
                register_fsdp_forward_method(loop.module, name)
                vars(loop.module)[name] = _like(step, vars(loop.module)[name])

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        for optimizer in loop.optimizers:
            if needs_closure(optimizer):
                raise ValueError(
                    f"{type(optimizer).__name__} decides by the loss how often it goes forward, which differs from rank to "
                    "rank: use another optimizer with strategy='fsdp', or one process"
                )

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        if self._synced == loop.held and loop.optimizer_idx is not None:
            self._sync(loop.module, not loop.held)

    @hookimpl
    def after_backward(self, loop: Loop) -> None:
        self._waiting = not self._synced

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        if self._waiting:  # a window is closed whose last backward was held
            self._sync(loop.module, True)
            self._waiting = False
            reduce_waiting(loop.module)
            loop.gradients = loop.find_gradients()
            if loop.window.weighted or loop.window.weight != loop.window.planned:
                scale_(loop.gradients, loop.window.correction(loop.world))

    @hookimpl
    def grad_norm(self, loop: Loop, norm_type: float) -> Tensor:
        norm = torch.nn.utils.get_total_norm([each for each in loop.gradients if each.numel()], norm_type)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if isinstance(loop.module, FSDPModule) and not self._failed:
            make_whole(loop.module)
        super().teardown(loop)

    def _sync(self, module: nn.Module, on: bool) -> None:
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(on)
        self._synced = on


@dataclass
class Parts:
    """The parts that a rank has of a run, for whoever saves them."""

    plugin: Fsdp
    module: nn.Module
    mesh: Any
    group: Any

    def prepare(self) -> None:
        """Let the parameters be the parts; after an evaluation, some are still gathered."""
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def waiting(self) -> dict[str, Tensor]:
        """The gradients that held backwards have left unsharded, by the names of their parameters."""
        found = {}
        for name, parameter in self._parameters():
            gradient = parameter.unsharded_accumulated_grad
            if gradient is None and hasattr(parameter, "_unsharded_param"):
                gradient = parameter._unsharded_param.grad
            if gradient is not None:
                found[name] = gradient
        return found

    def set_waiting(self, gradients: dict[str, Tensor]) -> None:
        """Put back what :meth:`waiting` gave, where torch would have left it."""
        self.plugin._waiting = bool(gradients)
        if not gradients:
            return
        for part in self.module.modules():
            if isinstance(part, FSDPModule):  # what holds the gradient is made when it is first gathered
                part.unshard()
                part.reshard()
        for name, parameter in self._parameters():
            if name in gradients:
                whole, gradient = parameter._unsharded_param, gradients[name].clone().to(self.mesh.device_type)
                if gradient.dtype == whole.dtype:
                    whole.grad = gradient
                else:
                    parameter.unsharded_accumulated_grad = gradient

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                for group in part._get_fsdp_state()._fsdp_param_groups:
                    for parameter in group.fsdp_params:
                        yield names[id(parameter.sharded_param)], parameter


def _like(step: Callable[..., Any], gathering: Callable[..., Any]) -> Callable[..., Any]:
    """``gathering`` with the signature of ``step``; what torch makes of a bound method lacks the first argument."""

    @functools.wraps(step)
    def call(*arguments: Any, **named: Any) -> Any:
        return gathering(*arguments, **named)

    return call


def blocks_of(module: nn.Module, names: set[str], min_size: int) -> Iterator[nn.Module]:
    """The parts of ``module`` that are sharded each by itself, innermost first; not ``module`` itself."""
    for part in module.children():
        yield from blocks_of(part, names, min_size)
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):  # they have no forward of their own
            continue
        own = [each for each in part.parameters() if not isinstance(each, DTensor)]
        if type(part).__name__ in names if names else sum(each.numel() for each in own) >= min_size:
            yield part


def reduce_waiting(module: nn.Module) -> None:
    """Reduce the gradients that held backwards have left unsharded."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            for group in part._get_fsdp_state()._fsdp_param_groups:
                group.post_backward()
    module._get_fsdp_state()._root_post_backward_final_callback()  # type: ignore[operator]


def whole_state(module: nn.Module) -> dict[str, Any]:
    """The state of a sharded module with whole tensors, which all ranks must ask for together."""
    state = module.state_dict()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}


@torch.no_grad()
def make_whole(module: nn.Module) -> None:
    """Undo ``fully_shard``: plain parameters, the module's own class and methods."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    for part in module.modules():
        parameters: dict[str, Any] = dict(part._parameters)
        for name, parameter in parameters.items():
            if isinstance(parameter, DTensor):
                part._parameters[name] = nn.Parameter(parameter.full_tensor(), parameter.requires_grad)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            state = part._get_fsdp_state()
            state._pre_forward_hook_handle.remove()
            state._post_forward_hook_handle.remove()
            for group in state._fsdp_param_groups:
                before_save = group._module_to_pre_save_state_dict_hook_handle
                before_load = group._module_to_pre_load_state_dict_hook_handle
                after_load = [each._post_load_hook_handle for each in group.fsdp_params]
                for handle in (*before_save.values(), *before_load.values(), *after_load):
                    handle.remove()
            part.__class__ = type(part).__bases__[1]
            _module_state_mapping.pop(part, None)
        for mark in MARKS:
            vars(part).pop(mark, None)
    for name in STEPS:
        vars(module).pop(name, None)
