"""A measurement with its birth certificate: what ran, when, of which code, on which machine."""

import dataclasses
import inspect
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from hocket.errors import DataError
from hocket.runs.environment import commit, machine, source_digest, versions

FILE = "record.json"
FOLDERS = ("out", "data_dir")
"""Arguments of measurements that say where files are, and decide nothing."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was measured; everything in it is plain JSON.

    Attributes:
        name: What kind of measurement it is.
        command: The command line that repeats it.
        commit: Of the checkout that the code was imported from; None outside of one.
        dirty: Whether tracked or new files differed from that commit; None without one.
        source: Digest of the package's Python files, which tells code apart without commits.
        date: Start of the measurement, ISO 8601 in UTC.
        versions: Of Python, PyTorch and Hocket.
        machine: Processor, cores, threads used, memory in MiB, settings of the allocator.
        settings: Everything that was chosen.
        rows: The measurements.
    """

    name: str
    command: str
    commit: str | None
    dirty: bool | None
    source: str
    date: str
    versions: dict[str, str]
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        measure: Callable[..., object],
        chosen: Mapping[str, Any],
        threads: int = 1,
        **further: Any,
    ) -> Self:
        """A record without rows of a measurement, a command of ``python -m benchmarks``.

        Args:
            measure: What is called for it; the record has its name.
            chosen: With which arguments; all but folders are settings.
            threads: Of PyTorch.
            further: Settings that are no arguments.
        """
        name = measure.__name__
        settings = {key: value for key, value in chosen.items() if key not in FOLDERS}
        for key, value in settings.items():
            if isinstance(value, Sequence) and not isinstance(value, str):
                settings[key] = list(value)
        command = command_line(f"python -m benchmarks {name}", measure, chosen)
        return cls.begin(name, command, settings | further, threads)

    @classmethod
    def begin(cls, name: str, command: str, settings: dict[str, Any], threads: int) -> Self:
        """A record without rows, of this moment, this code and this machine."""
        head, dirty = commit()
        return cls(
            name=name,
            command=command,
            commit=head,
            dirty=dirty,
            source=source_digest(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(),
            machine=machine(threads),
            settings=settings,
            rows=[],
        )

    def with_rows(self, rows: list[dict[str, Any]]) -> Self:
        """The same certificate with these measurements."""
        return dataclasses.replace(self, rows=rows)

    def write(self, folder: Path) -> Path:
        """Put it into a folder, whole or not at all; gives the file."""
        return write_record_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The record in a folder.

        Raises:
            DataError: There is none, or it has other fields than a record.
        """
        fields = read_json(folder / FILE)
        wanted = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or set(fields) != wanted:
            got = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
            raise DataError(
                f"{folder / FILE} is no record: found {got}, wanted {sorted(wanted)}; "
                "measure again into another folder"
            )
        return cls(**fields)


def write_record_json(path: Path, value: object) -> Path:
    """Write a JSON file under another name first, so that no half of it is ever seen."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        DataError: It is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"there is no {path}; measure first, or name another folder") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); delete it and measure again") from error


def command_line(
    program: str, entry: Callable[..., object], chosen: Mapping[str, object]
) -> str:
    """The command that repeats a measurement: what differs from the defaults of its function.

    Folders outside of the working folder are named, not located: ``data_dir`` becomes DIR.

    >>> def entry(*, steps: int = 3, data_dir: Path | None = None, fast: bool = True): ...
    >>> command_line("python -m benchmarks", entry, {"steps": 5, "data_dir": Path("/a"), "fast": False})
    'python -m benchmarks --steps 5 --data-dir DIR --no-fast'
    """
    words = [*shlex.split(program)]
    for name, parameter in inspect.signature(entry).parameters.items():
        value, option = chosen.get(name, parameter.default), name.replace("_", "-")
        if value == parameter.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [f"--{option}", "DIR" if name == "data_dir" else _located(item)]
    return shlex.join(words)


def _located(value: object) -> str:
    """A value as text; of an absolute path only the last name."""
    if isinstance(value, Path) and value.is_absolute():
        return value.name
    return str(value)
