"""Train low-rank adapters of Linear layers, and save nothing else (LoRA, Hu et al. 2021)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import parameters_of

M = TypeVar("M", bound=nn.Module)
PARTS = ("lora_a", "lora_b", "lora_scale")
"""What an adapted layer has beside its own: two factors of shapes (rank, in) and (out, rank), and what they count for."""


class Lora(Plugin):
    """Freeze the module and train ``scale * B @ A`` beside the weight of each chosen Linear layer.

    B begins as zeros, so that training begins with the base itself. The adapters stay on the module when a run is over;
    :func:`merge` makes them part of the weights.
    """

    name = "lora"
    before = ("accelerator", "strategy", "precision", "resume", "checkpoint", "model_summary")
    disturbs = ("gradients", "parameters")
    works_with = ">=0.1"
    transient = ("_flags",)

    rank: int = option(0, "The rank of the adapters; 0 is off.", flag="lora_rank")
    alpha: float = option(16.0, "An adapter counts alpha / rank.", flag="lora_alpha", enables=False)
    targets: Sequence[str] = option(
        ("*",), "Names of the Linear layers, with wildcards.", flag="lora_targets", enables=False
    )
    also: Sequence[str] = option(
        (),
        "Names of parameters and buffers that are trained, or change, and are saved too.",
        flag="lora_also",
        enables=False,
    )
    seed: int = option(0, "Where the adapters' first values come from.", flag="lora_seed", enables=False)

    def validate(self) -> None:
        if self.rank < 1:
            raise self.invalid("rank", "a whole number from 1")
        for name in ("targets", "also"):
            if isinstance(getattr(self, name), str):
                raise self.invalid(name, "a list of names")
        self._flags: dict[nn.Parameter, bool] = {}

    @hookimpl
    def setup(self, loop: Loop) -> None:
        layers = [layer for name, layer in linears(loop.module).items() if matches(name, self.targets)]
        if not layers:
            there = ", ".join(linears(loop.module)) or "none"
            raise self.invalid("targets", f"names of Linear layers, with wildcards; the module has {there}")
        generator = torch.Generator().manual_seed(self.seed)  # of its own: no other random number changes
        for layer in layers:
            if not isinstance(layer, Adapted):
                adapt(layer, self.rank, self.alpha / self.rank, generator)
        if loop.stage == "fit":
            self._flags = {parameter: parameter.requires_grad for parameter in loop.module.parameters()}
            for name, parameter in loop.module.named_parameters():
                parameter.requires_grad_(self._is_trained(name))

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        own = {parameter for name, parameter in loop.module.named_parameters() if name.endswith(PARTS)}
        if own.isdisjoint(parameter for optimizer in loop.optimizers for parameter in parameters_of(optimizer)):
            raise ValueError(
                "lora: no optimizer has the adapters. Let configure_optimizers take self.parameters(), or those of them that "
                "require a gradient"
            )

    @hookimpl(optionalhook=True)
    def saved_tensors(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._is_trained(name)]

    @hookimpl
    def teardown(self) -> None:
        for parameter, flag in self._flags.items():
            parameter.requires_grad_(flag)
        self._flags = {}

    def _is_trained(self, name: str) -> bool:
        return name.endswith(PARTS) or matches(name, self.also)


class Adapted(nn.Linear):
    """A Linear layer with an adapter beside its weight."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: Tensor

    def forward(self, input: Tensor) -> Tensor:
        low = functional.linear(input, self.lora_a)
        return super().forward(input) + functional.linear(low, self.lora_b) * self.lora_scale


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """Return the Linear layers by name, without subclasses, which may use their weight without being called."""
    named = module.named_modules()
    return {n: each for n, each in named if isinstance(each, nn.Linear) and type(each) in (nn.Linear, Adapted)}


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether ``name`` is one of ``patterns``, in which * stands for anything."""
    return any(fnmatch(name, pattern) for pattern in patterns)


def adapt(layer: nn.Linear, rank: int, scale: float, generator: torch.Generator | None = None) -> None:
    """Give ``layer`` an adapter, which has no effect until it is trained."""
    like: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    bound = layer.in_features**-0.5
    first = (torch.rand(rank, layer.in_features, generator=generator) * 2 - 1) * bound
    layer.register_parameter("lora_a", nn.Parameter(first.to(**like)))
    layer.register_parameter("lora_b", nn.Parameter(torch.zeros(layer.out_features, rank, **like)))
    layer.register_buffer("lora_scale", torch.tensor(scale, **like))
    layer.__class__ = Adapted


@torch.no_grad()
def merge(module: M) -> M:
    """Add each adapter to the weight of its layer and take it away; ``module`` itself."""
    for layer in linears(module).values():
        if isinstance(layer, Adapted):
            layer.weight.add_(layer.lora_scale * layer.lora_b @ layer.lora_a)
            for name in PARTS:
                delattr(layer, name)
            layer.__class__ = nn.Linear  # type: ignore[assignment]
    return module


def load_adapters(module: M, place: str | os.PathLike[str]) -> M:
    """Give ``module``, the base, the adapters of a checkpoint or of an exported ``.safetensors`` file; ``module`` itself.

    Raises:
        CheckpointError: if they were trained over another base.
    """
    from lightloop_plugins.checkpoint.weights.load import fill, read_weights

    weights, _ = read_weights(place)
    for name, layer in linears(module).items():
        if (first := weights.get(f"{name}.lora_a")) is not None and not isinstance(layer, Adapted):
            adapt(layer, first.shape[0], 0.0)
    whole = (
        weights if getattr(weights, "left_out", {}) else {**module.state_dict(), **weights}
    )  # a file has adapters alone
    fill(module, whole, os.fspath(place))
    return module
