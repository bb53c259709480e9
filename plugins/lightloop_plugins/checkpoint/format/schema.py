"""The forms that the parts of a checkpoint must have; whoever has written it, what is read is held against them first.

A form is a type; None; a range, in which a whole number must be; a set of texts, of which it must be one; a tuple of forms,
of which it must have one; ``[form]``, a list of any length, or ``[form, form]``, one of this length; ``{str: form}``, a mapping
from any text; or a mapping from names to forms, of which those with a question mark may be absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError

Form = Any
COUNT, POSITIVE = range(2**63), range(1, 2**63)
GENERATOR: Form = (
    [{"torch"}, Tensor],
    [{"python"}, [int, Tensor, (None, float)]],
    [{"numpy", "numpy state"}, {str: object}],
)
RANDOM: Form = {
    "python": [int, Tensor, (None, float)],
    "torch": Tensor,
    "numpy?": [str, Tensor, COUNT, COUNT, float],
    "devices?": [Tensor],
}
NUMBER: Form = (int, float, {"device": str, "tensor": Tensor}, {"fraction": [int, POSITIVE]})
NUMBERS: Form = ({"device": str, "stacked": Tensor}, {"numbers": [NUMBER]})
RUNNING: Form = {
    str: {
        "reduce": {"mean", "sum", "min", "max", "last"},
        "values": NUMBERS,
        "weights": NUMBERS,
        "folded?": COUNT,
        "even?": bool,
        "name?": str,
    }
}
PLUGINS: Form = {str: {"version": COUNT, "state": {str: object}}}
WINDOW: Form = {
    "planned": POSITIVE,
    "batches": COUNT,
    "contributions": COUNT,
    "weighted": bool,
    "warned": bool,
    "weight": NUMBER,
    "moments": [list],
}
START: Form = {"global": RANDOM, "generators": {str: GENERATOR}, "persistent?": [str]}
MOVED: Form = {str: {"at": Tensor, "states": Tensor}}
RANK: Form = {
    "windows": [WINDOW],
    "gradients": {str: Tensor},
    "waiting?": {str: Tensor},
    "metrics": {
        "step": RUNNING,
        "epoch": RUNNING,
        "latest": {str: NUMBER},
        "updates": {str: COUNT},
        "wholes?": {str: str},
        "on_bar": [str],
    },
    "loader": {
        "kind": {"itself", "state", "replay"},
        "now?": {str: GENERATOR},
        "start?": (None, START),
        "persistent?": [str],
        "reads?": COUNT,
        "moved?": MOVED,
        "evaluation?": {str: {"generators": {str: GENERATOR}, "persistent": [str]}},
        "state?": object,
    },
    "random": RANDOM,
    "differs?": {
        "buffers?": {str: Tensor},
        "extra?": {str: object},
        "generators?": {str: GENERATOR},
        "plugins?": PLUGINS,
    },
}
SOURCES: Form = {str: [{"mapping", "namespace"}, [str]]}
RUN: Form = {
    "module": {
        "parameters": {str: Tensor},
        "buffers": {str: Tensor},
        "transient": [str],
        "tied": {str: str},
        "requires_grad": {str: bool},
        "training": {str: bool},
        "extra": {str: object},
        "generators": {str: GENERATOR},
        "left_out?": {str: str},
    },
    "optimizers": [{"class": str, "groups": [[str]], "state": {"state": dict, "param_groups": [{str: object}]}}],
    "schedulers": [{"class": str, "state": {str: object}}],
    "plugins": PLUGINS,
    "counters": {
        **dict.fromkeys(("epoch", "batch_idx", "total_batches", "total_pieces", "global_step", "skipped_steps"), COUNT),
        "optimizer_steps": [COUNT],
    },
    "stop_reasons": [str],
    "ranks": [RANK],
    "hparams?": {str: object},
    "hparams_sources?": SOURCES,
}
STATES: dict[object, Form] = {
    "run": RUN,
    "weights": {
        "module": {"weights": {str: object}, "left_out?": {str: str}},
        "hparams?": {str: object},
        "hparams_sources?": SOURCES,
    },
}
"""By the content that the manifest speaks of."""
BODY: Form = {
    "run": str,
    "step": COUNT,
    "batch": COUNT,
    "parent?": (None, str),
    "content?": str,
    "exact?": bool,
    "ranked_by?": (None, {"metric": str, "mode": {"min", "max"}}),
    "resumed_from?": str,
    "saved_at?": str,
    "counters?": {str: object},
    "metrics?": {str: (None, int, float)},
    "plugins?": [[str, str, COUNT]],
    "options?": {str: {str: str}},
    "environment?": {str: str},
    "inputs?": {str: str},
    "partial?": {"left_out": [str], "base": str},
}
"""Of the manifest."""


def check_form(value: Any, form: Form, what: str, path: str = "") -> None:
    """Refuse what has another form.

    Raises:
        CheckpointError: it names ``what``, the path of the part in it, what is there, and what must be.
    """
    if (wrong := _wrong(value, form, path)) is not None:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {wrong}")


def _wrong(value: Any, form: Form, path: str) -> str | None:
    """What is wrong with ``value``, if anything is."""
    if isinstance(form, tuple):
        found = [_wrong(value, each, path) for each in form]
        return None if None in found else found[-1]
    if isinstance(form, dict) and isinstance(value, Mapping):
        return _wrong_in(value, form, path)
    if isinstance(form, list) and isinstance(value, list) and len(form) in (1, len(value)):
        forms = form * len(value) if len(form) == 1 else form
        return _first(_wrong(part, each, _at(path, n)) for n, (part, each) in enumerate(zip(value, forms, strict=True)))
    if _is(value, form):
        return None
    return f"{path or 'it'} is {_show(value)}, and must be {_name(form)}"


def _wrong_in(value: Mapping[Any, Any], form: dict[Any, Form], path: str) -> str | None:
    if str in form:
        if (odd := next((key for key in value if not isinstance(key, str)), None)) is not None:
            return f"{path or 'it'} has the key {_show(odd)}, which is no text"
        return _first(_wrong(part, form[str], _at(path, key)) for key, part in value.items())
    if lacking := [name for name in form if not name.endswith("?") and name not in value]:
        return f"{_at(path, lacking[0])} is missing"
    known = ((name.rstrip("?"), each) for name, each in form.items())
    return _first(_wrong(value[name], each, _at(path, name)) for name, each in known if name in value)


def _is(value: Any, form: Form) -> bool:
    if form is None or form is object:
        return form is object or value is None
    if isinstance(form, set):
        return isinstance(value, str) and value in form
    if isinstance(form, range):
        return type(value) is int and value in form
    if not isinstance(form, type):
        return False
    if isinstance(value, bool) and form is not bool:
        return False
    return isinstance(value, (int, float) if form is float else form)


def _first(found: Any) -> str | None:
    return next((each for each in found if each is not None), None)


def _at(path: str, key: object) -> str:
    return f"{path}.{str(key)[:100]}" if path else str(key)[:100]


def _show(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:100] if isinstance(value, (str, int, float)) else type(value).__name__


def _name(form: Form) -> str:
    if isinstance(form, set):
        return f"one of {', '.join(sorted(form))}"
    if isinstance(form, (dict, list)):
        length = f" of {len(form)}" if isinstance(form, list) and len(form) > 1 else ""
        return {"dict": "a mapping", "list": "a list"}[type(form).__name__] + length
    if isinstance(form, range):
        return f"a whole number from {form.start}"
    return "None" if form is None else str(form.__name__)
