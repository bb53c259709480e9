"""Modules that torch's ``fully_shard`` has sharded: what it leaves undone. Importing this takes half a second, so it is for live runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from lightloop.toolkit import defined

if TYPE_CHECKING:
    from lightloop_plugins.accelerators.fsdp import Fsdp

MARKS = (STATE_KEY, REGISTRY_KEY, "_is_fsdp_managed_module", "_fsdp_use_orig_params")
"""What ``fully_shard`` leaves in a module; with it, the module could not be sharded again."""
STEPS = ("training_step", "validation_step", "test_step", "predict_step")


def shard(module: nn.Module, blocks: list[nn.Module], mesh: Any, half: bool) -> None:
    """Shard ``blocks`` of ``module``, and ``module`` with what is in none; ``half``: gather in bfloat16, reduce in float32."""
    policy = inner = MixedPrecisionPolicy()
    if half:
        inner = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        policy = replace(inner, cast_forward_inputs=False)  # training_step has the batch as it is
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, mp_policy=policy if part is module else inner)
    for name in STEPS:
        if (step := defined(module, name)) is not None:
            register_fsdp_forward_method(module, name)
            vars(module)[name] = _like(step, vars(module)[name])


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
        gather_once(self.module)
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
                for group in groups_of(part):
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


def groups_of(part: FSDPModule) -> list[Any]:
    """The groups of parameters that are gathered together; older versions of torch have one at most."""
    state = part._get_fsdp_state()
    groups: list[Any] | None = getattr(state, "_fsdp_param_groups", None)
    return [each for each in (state._fsdp_param_group,) if each is not None] if groups is None else groups


def gather_once(module: nn.Module) -> None:
    """Have torch make what holds each gradient, which it does when a block is first gathered; held backwards look for all of them."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.unshard()
            part.reshard()


def reduce_waiting(module: nn.Module) -> None:
    """Reduce the gradients that held backwards have left unsharded."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            for group in groups_of(part):
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
            for group in groups_of(part):
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
