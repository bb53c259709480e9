"""Typed values that plugins share with one another."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, overload

T = TypeVar("T")
D = TypeVar("D")


class Key(Generic[T]):
    """The typed name of a value in a :class:`Stash`; two keys are never equal, whatever their names.

    Keep it at module level of the plugin that tells: ``GRAD_NORM: Key[Tensor] = Key("grad_norm")``.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class Stash:
    """A mapping from :class:`Key` to a value of the key's type."""

    def __init__(self) -> None:
        self._values: dict[Key[Any], object] = {}

    def __setitem__(self, key: Key[T], value: T) -> None:
        self._values[key] = value

    def __getitem__(self, key: Key[T]) -> T:
        return cast(T, self._values[key])

    def __delitem__(self, key: Key[T]) -> None:
        del self._values[key]

    def __contains__(self, key: Key[Any]) -> bool:
        return key in self._values

    @overload
    def get(self, key: Key[T]) -> T | None: ...
    @overload
    def get(self, key: Key[T], default: D) -> T | D: ...
    def get(self, key: Key[T], default: D | None = None) -> T | D | None:
        """Return the value of ``key``, or ``default`` if there is none."""
        return cast("T | D | None", self._values.get(key, default))

    def __len__(self) -> int:
        return len(self._values)
