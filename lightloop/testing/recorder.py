"""Record which hooks a run calls, in order."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any

from lightloop import Hooks, Loop, Plugin, hookimpl
from lightloop.host.dispatch import CLEAN_UP


def _recording(name: str, operation: bool) -> Any:
    def tell(self: Recorder, loop: Loop) -> None:
        self.events.append(name)

    def surround(self: Recorder, loop: Loop) -> Generator[None, Any, Any]:
        self.events.append(name)
        return (yield)

    return hookimpl(wrapper=True, tryfirst=True)(surround) if operation else hookimpl(tryfirst=True)(tell)


class Recorder(Plugin):
    """Writes the name of each hook that is called to ``events``, before the other plugins see it."""

    name = "recorder"

    for _name, _spec in inspect.getmembers(Hooks, inspect.isfunction):
        if hasattr(_spec, "lightloop_spec"):
            locals()[_name] = _recording(_name, _spec.lightloop_spec["firstresult"] and _name not in CLEAN_UP)
    del _name, _spec

    def validate(self) -> None:
        self.events: list[str] = []
