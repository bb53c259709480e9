"""The options of all plugins as the signature of a function, for people, editors and type checkers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from lightloop.host.found import Found
from lightloop.host.keywords import kinds, known_options
from lightloop.host.options import default_of, hints_of


def option_parameters(found: Mapping[str, Found]) -> list[inspect.Parameter]:
    """A keyword for each option of the plugins that were ``found``, and for each kind of plugin, in the order of names."""
    known = known_options(found)
    parameters = {
        option.keyword: inspect.Parameter(
            option.keyword,
            inspect.Parameter.KEYWORD_ONLY,
            default=default_of(option.field),
            annotation=hints_of(option.plugin).get(option.field.name, Any),
        )
        for option in known.values()
    }
    for kind in kinds(found.values()) - parameters.keys():
        parameters[kind] = inspect.Parameter(kind, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    return [parameters[name] for name in sorted(parameters)]


class OptionsSignature:
    """The ``__signature__`` of a class whose constructor takes the options of all plugins, made when it is asked for."""

    def __init__(self, discover: Any) -> None:
        self._discover = discover

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        own = inspect.signature(owner.__init__)  # type: ignore[misc]  # that of the class
        *first, options = list(own.parameters.values())[1:]
        if options.kind is not inspect.Parameter.VAR_KEYWORD:  # a subclass with a constructor of its own
            return own.replace(parameters=[*first, options])
        taken = {parameter.name for parameter in first}
        listed = [parameter for parameter in option_parameters(self._discover()) if parameter.name not in taken]
        return own.replace(parameters=[*first, *listed, options], return_annotation=inspect.Signature.empty)
