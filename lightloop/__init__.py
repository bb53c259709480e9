"""Lightloop trains PyTorch models: a loop that only emits events, and plugins that implement every feature."""

from importlib.metadata import version

from lightloop.evaluation import Evaluation, eval_loaders, evaluate
from lightloop.exceptions import add_note, context
from lightloop.gradients import clip_norm_, scale_, total_norm
from lightloop.hookspecs import Hooks, hookimpl, hookspec
from lightloop.host.discovery import discover
from lightloop.host.dispatch import Relay
from lightloop.host.found import Found, PluginError
from lightloop.host.options import option
from lightloop.host.order import OrderError, in_order
from lightloop.host.plugin import Plugin
from lightloop.host.roles import ROLES
from lightloop.inputs.data import size_of, with_is_last
from lightloop.inputs.hyperparameters import Hyperparameters
from lightloop.inputs.optimizers import (
    Schedule,
    Setup,
    needs_closure,
    parameters_of,
    read_setup,
    searches_line,
    takes_closure,
)
from lightloop.inputs.samples import batch_size, describe, is_collated
from lightloop.inputs.signatures import Fixed, Step, bind, defined, takes
from lightloop.loop import Loop
from lightloop.metrics import Metrics, Running, fetch
from lightloop.module import Module
from lightloop.randomness import keep_random, seed_everything
from lightloop.replay import Closure, refuse_closures, remember, replay
from lightloop.stash import Key, Stash
from lightloop.toolkit.amounts import seconds_of
from lightloop.toolkit.cadence import Every
from lightloop.toolkit.callback import Callback
from lightloop.toolkit.containers import map_leaves
from lightloop.toolkit.files import make_directory, open_directory, open_handle, open_in, replace_in
from lightloop.toolkit.loaders import Around, Limited, remade
from lightloop.toolkit.naming import apart
from lightloop.toolkit.samples import take_samples
from lightloop.toolkit.tensors import elements, find_nonfinite, frozen
from lightloop.toolkit.writer import BusyError, Writer
from lightloop.trainer import Result, Trainer
from lightloop.warning import warn
from lightloop.window import Window
from lightloop.world import World

__version__ = version("lightloop")

__all__ = [
    "ROLES",
    "Around",
    "BusyError",
    "Callback",
    "Closure",
    "Evaluation",
    "Every",
    "Fixed",
    "Found",
    "Hooks",
    "Hyperparameters",
    "Key",
    "Limited",
    "Loop",
    "Metrics",
    "Module",
    "OrderError",
    "Plugin",
    "PluginError",
    "Relay",
    "Result",
    "Running",
    "Schedule",
    "Setup",
    "Stash",
    "Step",
    "Trainer",
    "Window",
    "World",
    "Writer",
    "add_note",
    "apart",
    "batch_size",
    "bind",
    "clip_norm_",
    "context",
    "defined",
    "describe",
    "discover",
    "elements",
    "eval_loaders",
    "evaluate",
    "fetch",
    "find_nonfinite",
    "frozen",
    "hookimpl",
    "hookspec",
    "in_order",
    "is_collated",
    "keep_random",
    "make_directory",
    "map_leaves",
    "needs_closure",
    "open_directory",
    "open_handle",
    "open_in",
    "option",
    "parameters_of",
    "read_setup",
    "refuse_closures",
    "remade",
    "remember",
    "replace_in",
    "replay",
    "scale_",
    "searches_line",
    "seconds_of",
    "seed_everything",
    "size_of",
    "take_samples",
    "takes",
    "takes_closure",
    "total_norm",
    "warn",
    "with_is_last",
]
