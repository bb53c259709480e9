"""Lightloop trains PyTorch models: a loop that only emits events, and plugins that implement every feature."""

from importlib.metadata import version
from typing import Any

from lightloop.evaluation import Evaluation, evaluate
from lightloop.hookspecs import Hooks, hookimpl, hookspec
from lightloop.host.found import Found, PluginError
from lightloop.host.options import option
from lightloop.host.order import OrderError
from lightloop.host.plugin import Plugin
from lightloop.inputs.optimizers import Schedule, Setup
from lightloop.loop import Loop
from lightloop.metrics import Metrics
from lightloop.module import Module
from lightloop.randomness import seed_everything
from lightloop.stash import Key, Stash
from lightloop.toolkit.cadence import Every
from lightloop.toolkit.callback import Callback
from lightloop.trainer import Result, Trainer
from lightloop.window import Window
from lightloop.world import World

__version__ = version("lightloop")

__all__ = [
    "Callback",
    "Evaluation",
    "Every",
    "Found",
    "Hooks",
    "Key",
    "Loop",
    "Metrics",
    "Module",
    "OrderError",
    "Plugin",
    "PluginError",
    "Result",
    "Schedule",
    "Setup",
    "Stash",
    "Trainer",
    "Window",
    "World",
    "evaluate",
    "hookimpl",
    "hookspec",
    "option",
    "seed_everything",
]


def __getattr__(name: str) -> Any:
    """A tool that was here before it went to :mod:`lightloop.toolkit`; for one release, with a warning."""
    from lightloop import toolkit
    from lightloop.warning import warn

    if name not in toolkit.__all__:
        raise AttributeError(f"module 'lightloop' has no attribute {name!r}")
    warn(f"lightloop.{name} is now lightloop.toolkit.{name}", DeprecationWarning)
    return getattr(toolkit, name)
