"""``lightloop checkpoint export`` and ``import``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lightloop.cli.front import Parser, UsageError
from lightloop_plugins.checkpoint.commands.text import printable, size
from lightloop_plugins.checkpoint.state.partial import listed
from lightloop_plugins.checkpoint.weights.foreign import digest
from lightloop_plugins.checkpoint.weights.load import export_weights
from lightloop_plugins.checkpoint.weights.unpickle import read_foreign

FILES = (".safetensors", ".pt", ".pth", ".bin")


def export(arguments: list[str]) -> int:
    """Write the weights of a checkpoint to a file that other programs read: .safetensors, or .pt with a state_dict."""
    parser = Parser("checkpoint export", export)
    parser.add_argument(
        "place", metavar="PLACE", help="a checkpoint; of a folder or a run, the newest that verifies is taken"
    )
    parser.add_argument("target", metavar="FILE", help="the file, whose name ends in .safetensors, .pt, .pth or .bin")
    parser.add_argument("--ema", action="store_true", help="the averaged weights that the plugin ema keeps")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    said = parser.parse_args(arguments)
    if not said.target.endswith(FILES):
        raise UsageError(f"the file must end in {', '.join(FILES)}; it is {said.target!r}")
    _check_free(said.target, said.force)
    found = export_weights(said.place, said.target, said.ema)
    averaged = ", averaged" if said.ema else ""
    lacks = found.manifest.body.get("partial", {}).get("left_out", [])
    partial = f"; the checkpoint is partial, {len(lacks)} tensors are in neither: {listed(lacks)}" if lacks else ""
    print(
        f"{said.target}: weights of step {found.manifest.step}{averaged}, {size(os.path.getsize(said.target))}{partial}"
    )
    return 0


def import_(arguments: list[str]) -> int:
    """Take the weights out of a Lightning .ckpt, a .pt, .bin or .safetensors file; nothing of it is run without --trust."""
    parser = Parser("checkpoint import", import_)
    parser.add_argument("source", metavar="FILE", help="the file of somebody else's")
    parser.add_argument("target", metavar="TARGET", help="a .safetensors file, or a folder to put a checkpoint in")
    parser.add_argument("--strip", metavar="PREFIX", help="take this off the names of weights, such as model.")
    parser.add_argument("--force", action="store_true", help="replace a .safetensors file that is there")
    parser.add_argument("--trust", action="store_true", help="run whatever code is in the file, with your account and all "
        "that it may do; only for files of people whom you would give these")  # fmt: skip
    parser.epilog = "Weights, buffers and plain hyperparameters are taken; what is left behind is listed."
    said = parser.parse_args(arguments)
    if said.target.endswith(FILES[1:]):
        raise UsageError(f"TARGET must be a .safetensors file or a folder; it is {said.target!r}")
    if said.target.endswith(".safetensors"):
        _check_free(said.target, said.force)
    if said.trust and Path(said.source).is_file():
        print(f"trusted: whatever code is in {said.source} (SHA-256 {digest(said.source)}) is run with your account")
    foreign = read_foreign(said.source, said.trust)
    if said.strip:
        foreign = foreign.stripped(said.strip)
    where = foreign.save(said.source, said.target)
    whole = size(sum(tensor.numel() * tensor.element_size() for tensor in foreign.weights.values()))
    print(printable(f"{said.source}: {foreign.kind}"))
    print(
        printable(f"taken: {len(foreign.weights)} tensors, {whole}; hyperparameters: {_listed(list(foreign.hparams))}")
    )
    print(printable(f"left behind: {_listed(foreign.left)}"))
    print(f"{where}: read it with Module.load_from_checkpoint(path), or train on with fit(module, data, resume=path), which "
          "begins at step 0 with these weights and everything else anew")  # fmt: skip
    return 0


def _check_free(target: str, force: bool) -> None:
    if not force and os.path.lexists(target):
        raise UsageError(f"{target} is there already; --force replaces it")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
