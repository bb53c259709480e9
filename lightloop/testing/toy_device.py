"""A second device without hardware: ``torch.device("toy")``, real to torch in all but its arithmetic, which is the CPU's.

:func:`register` gives the running process a PrivateUse1 device written in Python. Tensors on it are bit-equal to the
CPU's; what is found out with it is what a mock cannot show: a tensor that was left on another device raises as on CUDA,
``torch.accelerator`` finds the device, its random numbers are a stream of their own, and :data:`counts` says how often
a value was read back. It has no kernels, no streams, no memory of its own and no speed.

It rests on ``torch.utils.backend_registration._setup_privateuseone_for_python_backend``, which is marked experimental:
seen to work with torch 2.13; :func:`why_not` says why it cannot be had elsewhere. A process has at most one PrivateUse1
device, and cannot be rid of it again. Register it before the first backward of the process: torch then decides for how
many devices it differentiates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "toy"
DEVICES = 2
"""How many there are: ``toy:0`` and ``toy:1``; backward works on the first alone."""

counts: Counter[str] = Counter()
"""Since the process began, or since it was last cleared: ``ops`` in all; ``reads``, those that made the host wait for a
value (``item``, ``bool``, ``equal``, a copy to the host); ``to_device`` and ``to_host``, tensors that were copied over;
``waits``, those copied to the device that were not ``non_blocking``."""

_libraries: list[Any] = []  # a library that nobody holds is taken out again
_random = torch.Generator().manual_seed(0)

_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten._to_copy.default, _aten.set_.source_Tensor}
_READS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}
_LOW_PRECISION = ("linear", "matmul", "mm", "addmm", "bmm", "conv2d", "scaled_dot_product_attention")


def why_not() -> str | None:
    """Why the device cannot be had in this process; None if it can."""
    if _libraries:
        return None
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        return f"torch {torch.__version__} has no hook for devices written in Python; 2.13 has"
    taken = torch._C._get_privateuse1_backend_name()
    return f"the PrivateUse1 device of this process is already {taken!r}" if taken != "privateuseone" else None


def register() -> None:
    """Give this process the device, if it does not have it yet.

    Raises:
        RuntimeError: if it cannot be had.
    """
    if (reason := why_not()) is not None:
        raise RuntimeError(f"there can be no {NAME} device: {reason}")
    if _libraries:
        return
    library: Any = torch.library  # it has no types
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    factories = library.Library("_", "IMPL")
    factories.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    factories.fallback(library.fallthrough_kernel, "AutocastPrivateUse1")
    copies = library.Library("aten", "IMPL", "PrivateUse1")
    copies.impl("_copy_from", _copy_from)
    autocast = library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in _LOW_PRECISION:
        autocast.impl(name, _autocast(getattr(_aten, name)))
    _libraries.extend((factories, copies, autocast))


class _Backend:
    """What torch asks of ``torch.toy``."""

    def __init__(self) -> None:
        self.current = 0

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return DEVICES

    def current_device(self) -> int:
        return self.current

    def set_device(self, device: int | str | torch.device) -> None:
        self.current = device if isinstance(device, int) else torch.device(device).index or 0

    def manual_seed(self, seed: int) -> None:
        _random.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: object = None) -> Tensor:
        return _random.get_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        _random.set_state(state)

    def synchronize(self, device: object = None) -> None:
        counts["synchronize"] += 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class ToyTensor(Tensor):
    """A tensor on the device; ``host`` holds its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor, index: int = 0) -> ToyTensor:
        """Wrap ``host`` as a tensor of device ``toy:index``."""
        made: ToyTensor = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device(NAME, index),
            requires_grad=False,
        )
        made.host = host
        return made

    def __init__(self, host: Tensor, index: int = 0) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"toy({self.host!r})"

    def tolist(self) -> Any:
        """Read the values; torch refuses it to subclasses of its own accord."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(op, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Tensor.cpu(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do ``op`` on the numbers behind its arguments, and wrap what comes out."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, ToyTensor)]
    _refuse_mixture(op, tensors, ours)
    wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    stays = wanted is None or wanted.type == NAME
    _count(op, args, ours, stays, kwargs.get("non_blocking", False))
    index = wanted.index if wanted is not None else ours[0].device.index if ours else None
    on_host, with_host = tree_map(_host, (args, dict(kwargs)))
    out = _with_own_random(op, on_host, with_host)
    if op is _aten.copy_.default:
        return args[0]
    if not stays:
        return out
    out = tree_map(lambda leaf: _wrapped(leaf, index), out)
    return return_and_correct_aliasing(op, args, kwargs, out)  # type: ignore[no-untyped-call]


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What ``torch.tensor(1, device="toy")`` ends in, beneath the reach of ``__torch_dispatch__``."""
    counts["ops"] += 1
    counts["to_device"] += not isinstance(source, ToyTensor)
    counts["waits"] += not isinstance(source, ToyTensor) and not non_blocking
    _host(target).copy_(_host(source))
    return target


def _refuse_mixture(op: Any, tensors: list[Tensor], ours: list[ToyTensor]) -> None:
    if not ours or op in _COPIES:
        return
    devices = {str(tensor.device) for tensor in tensors if tensor.dim() or isinstance(tensor, ToyTensor)}
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {' and '.join(sorted(devices))}! ({op})"
        )


def _count(op: Any, args: Any, ours: list[ToyTensor], stays: bool, non_blocking: bool) -> None:
    counts["ops"] += 1
    into = args[0] if op is _aten.copy_.default else None
    to_host = (op is _aten._to_copy.default and bool(ours) and not stays) or (
        into is not None and bool(ours) and not isinstance(into, ToyTensor)
    )
    to_device = (op is _aten._to_copy.default and not ours) or (
        isinstance(into, ToyTensor) and not isinstance(args[1], ToyTensor)
    )
    counts["to_host"] += to_host
    counts["to_device"] += to_device
    counts["waits"] += to_device and not (non_blocking or args[2:] == (True,))
    counts["reads"] += to_host or op in _READS


def _host(leaf: Any) -> Any:
    if isinstance(leaf, ToyTensor):
        return leaf.host
    return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == NAME else leaf


def _wrapped(leaf: Any, index: int | None) -> Any:
    current: int = torch.get_device_module(NAME).current_device()
    return ToyTensor(leaf, current if index is None else index) if isinstance(leaf, Tensor) else leaf


def _with_own_random(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call ``op``; if it draws random numbers, they are of the device's own stream."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return op(*args, **kwargs)
    kept = torch.get_rng_state()
    torch.set_rng_state(_random.get_state())
    try:
        return op(*args, **kwargs)
    finally:
        _random.set_state(torch.get_rng_state())
        torch.set_rng_state(kept)


def _autocast(packet: Any) -> Callable[..., Any]:
    op = packet.default if hasattr(packet, "default") else packet
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.__members__["AutocastPrivateUse1"])

    def low(leaf: Any) -> Any:
        single = isinstance(leaf, Tensor) and leaf.dtype is torch.float32
        return leaf.to(torch.get_autocast_dtype(NAME)) if single else leaf

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*tree_map(low, args), **tree_map(low, kwargs))

    return call


__all__ = ["DEVICES", "NAME", "ToyTensor", "counts", "register", "why_not"]
