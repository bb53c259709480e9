"""What is in a file of metrics, read row by row: it may have grown to more than fits into memory."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lightloop.toolkit import open_in, replace_in

STEP = "step"
TEXT = {"newline": "", "encoding": "utf-8", "errors": "surrogatepass"}
"""How the file is opened: any name that a metric can have can be written."""
LINE = 2**24
"""So many bytes a row has at most; what is longer was not written here, and nothing is read from there on."""
BLOCK = 2**20
BACKWARDS = (2**16, BLOCK, LINE)
"""How far back the end of the last row is looked for."""


@dataclass(frozen=True)
class Place:
    """A place between two rows: the bytes and the rows before it, and the step of the last one."""

    at: int
    rows: int = 0
    step: int | None = None


def header(file: IO[bytes]) -> tuple[list[str], int]:
    """The columns, and where the rows begin; that is 0 where a process was killed before it had written the columns."""
    file.seek(0)
    text = b""
    while len(text) < LINE and (line := file.readline(LINE)):
        text += line
        if line.endswith(b"\n") and text.count(b'"') % 2 == 0:  # the name of a column may have a line's end in it
            lines = io.StringIO(text.decode("utf-8", "surrogatepass"), newline="")
            return next(csv.reader(lines), [STEP]), len(text)
    return [STEP], 0


def places(file: IO[bytes], start: Place) -> Iterator[Place]:
    """The place after each whole row from ``start`` on; a process that was killed may have left half a row at the end."""
    file.seek(start.at)
    at, rows = start.at, start.rows
    while (line := file.readline(LINE)).endswith(b"\n"):
        at += len(line)
        step = line.partition(b",")[0].strip()
        if step.isdigit():
            rows += 1
            yield Place(at, rows, int(step))


def end_of(file: IO[bytes], start: Place, rows: int | None, step: int | None) -> Place:
    """The place after the last row that is among the first ``rows`` and at no later step than ``step``."""
    end = start
    for place in places(file, start):
        if (rows is not None and place.rows > rows) or (step is not None and (place.step or 0) > step):
            break
        end = place
    return end


def known(file: IO[bytes], begin: int, at: int, rows: int, step: int | None) -> Place | None:
    """The place ``at``, after ``rows`` rows, if the file can have it: if a row no later than ``step`` ends there."""
    if not begin <= at <= file.seek(0, io.SEEK_END):
        return None
    last = last_step(file, begin, at)
    fits = file.seek(max(at - 1, 0)) == 0 or file.read(1) == b"\n"
    return Place(at, rows, last) if fits and (step is None or (last or 0) <= step) else None


def end_of_lines(file: IO[bytes], begin: int) -> int:
    """Where the last whole row ends."""
    size = file.seek(0, io.SEEK_END)
    for length in BACKWARDS:
        start = max(begin, size - length)
        file.seek(start)
        if (found := file.read(size - start).rfind(b"\n")) >= 0:
            return start + found + 1
    return begin


def last_step(file: IO[bytes], begin: int, end: int | None = None) -> int | None:
    """The step of the last whole row between two places, found from the end on; None where there is none."""
    size = file.seek(0, io.SEEK_END) if end is None else end
    for length in BACKWARDS:
        start = max(begin, size - length)
        file.seek(start)
        for line in reversed(file.read(size - start).split(b"\n")[start > begin : -1]):
            if (step := line.partition(b",")[0].strip()).isdigit():
                return int(step)
    return None


def rewrite(directory: Path, name: str, columns: list[str], most: int | None = None) -> None:
    """Write the first ``most`` rows of the file anew, or all of them, with these columns."""
    with replace_in(directory, name, **TEXT) as new, open_in(directory, name, **TEXT) as old:
        writer = csv.DictWriter(new, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        rows = csv.DictReader(old, restval="")
        writer.writerows(itertools.islice((row for row in rows if _is_whole(row)), most))


def begins_with(directory: Path, name: str, other: str) -> bool:
    """Whether the rows of the file begin with those of another, whatever columns each has."""
    with open_in(directory, name, "rb") as whole, open_in(directory, other, "rb") as part:
        while block := part.read(BLOCK):
            if whole.read(len(block)) != block:
                break
        else:
            return True
    with open_in(directory, name, **TEXT) as whole_text, open_in(directory, other, **TEXT) as part_text:
        rows, others = _filled(whole_text), _filled(part_text)
        return all(row == next(rows, None) for row in others)


def _filled(file: IO[str]) -> Iterator[dict[str, str]]:
    """What is in each whole row."""
    for row in csv.DictReader(_whole_lines(file), restval=""):
        if _is_whole(row):
            yield {name: value for name, value in row.items() if value}


def _whole_lines(file: IO[str]) -> Iterator[str]:
    return itertools.takewhile(lambda line: line.endswith(("\n", "\r")), iter(lambda: file.readline(LINE), ""))


def _is_whole(row: dict[str, str]) -> bool:
    return (row.get(STEP) or "").isdigit()
