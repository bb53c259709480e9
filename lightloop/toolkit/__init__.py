"""Tools for plugins, and for users' own code; the loop itself imports none that is defined here."""

from lightloop.evaluation import eval_loaders
from lightloop.exceptions import add_note, context
from lightloop.gradients import clip_norm_, scale_, total_norm
from lightloop.host.discovery import discover
from lightloop.host.dispatch import Relay
from lightloop.host.order import in_order
from lightloop.host.roles import ROLES
from lightloop.inputs.data import size_of, with_is_last
from lightloop.inputs.hyperparameters import Hyperparameters
from lightloop.inputs.optimizers import needs_closure, parameters_of, read_setup, searches_line, takes_closure
from lightloop.inputs.samples import batch_size, describe, is_collated
from lightloop.inputs.signatures import Fixed, Step, bind, defined, takes
from lightloop.metrics import Running, fetch
from lightloop.randomness import keep_random
from lightloop.replay import Closure, refuse_closures, remember, replay
from lightloop.toolkit.amounts import seconds_of
from lightloop.toolkit.containers import map_leaves
from lightloop.toolkit.files import make_directory, open_directory, open_handle, open_in, replace_in
from lightloop.toolkit.loaders import Around, Limited, remade
from lightloop.toolkit.naming import apart
from lightloop.toolkit.samples import take_samples
from lightloop.toolkit.tensors import elements, find_nonfinite, frozen
from lightloop.toolkit.writer import BusyError, Writer
from lightloop.warning import warn

__all__ = [
    "ROLES",
    "Around",
    "BusyError",
    "Closure",
    "Fixed",
    "Hyperparameters",
    "Limited",
    "Relay",
    "Running",
    "Step",
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
    "fetch",
    "find_nonfinite",
    "frozen",
    "in_order",
    "is_collated",
    "keep_random",
    "make_directory",
    "map_leaves",
    "needs_closure",
    "open_directory",
    "open_handle",
    "open_in",
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
    "size_of",
    "take_samples",
    "takes",
    "takes_closure",
    "total_norm",
    "warn",
    "with_is_last",
]
