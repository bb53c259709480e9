"""Notes on exceptions, also on those that refuse them."""

from __future__ import annotations


def add_note(error: BaseException, note: str) -> None:
    """Add ``note`` to ``error``, whatever its class says of attributes: a frozen dataclass lets none be set."""
    try:
        error.add_note(note)
    except Exception:
        notes = vars(error).get("__notes__")
        vars(error)["__notes__"] = [*(notes if isinstance(notes, list) else ()), note]


def notes_of(error: BaseException) -> list[str]:
    """The notes on ``error``."""
    return [str(note) for note in getattr(error, "__notes__", ())]
