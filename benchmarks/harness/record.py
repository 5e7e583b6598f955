"""Records: the results of a measurement with its settings, code, date and machine."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from benchmarks.harness.settings import Settings
from hocket.errors import DataError
from hocket.files import write_text_atomically
from hocket.runs.environment import environment

FILE = "record.json"
FOLDERS = ("out", "data_dir", "python")
"""Settings that locate files and do not influence results."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Results of a measurement; everything in it is plain JSON.

    Attributes:
        name: The measurement.
        command: The command line that repeats it.
        commit: Git commit of the imported code; None outside of a checkout.
        dirty: Whether tracked or new files differed from that commit; None without one.
        source: Digest of the package's Python files, which identifies code without commits.
        date: Start of the measurement, ISO 8601 in UTC.
        versions: Versions of Python, PyTorch and Hocket.
        machine: Processor, cores, threads used, memory in MiB, settings of the allocator.
        settings: All settings.
        rows: The results.
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
    def from_settings(cls, name: str, settings: Settings, **further: Any) -> Self:
        """Begin the record of a measurement that is a command of ``python -m benchmarks``.

        It has no rows yet, and is of the present moment, code and machine. All settings but
        folders are recorded, and further values with them.
        """
        recorded = {
            key: list(value) if isinstance(value, list | tuple) else value
            for key, value in vars(settings).items()
            if key not in FOLDERS
        }
        return cls(
            name=name,
            command=command_line(f"python -m benchmarks {name}", settings),
            **environment(getattr(settings, "threads", 1)),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            settings=recorded | further,
            rows=[],
        )

    @property
    def origin(self) -> dict[str, Any]:
        """The ``date``, ``torch``, ``cpu`` and ``cores`` for sentences about the record."""
        about = {"date": self.date[:10], "torch": self.versions["torch"]}
        return about | {name: self.machine[name] for name in ("cpu", "cores")}

    def with_rows(self, rows: list[dict[str, Any]]) -> Self:
        """Return the same record with these rows."""
        return dataclasses.replace(self, rows=rows)

    def write(self, folder: Path) -> Path:
        """Write the record atomically into a folder and return the file."""
        return write_record_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the record in a folder.

        Raises:
            DataError: There is none, or it has other fields than a record.
        """
        fields = read_json(folder / FILE)
        if isinstance(fields, dict):  # the record of a study keeps runs that no table shows
            fields.pop("kept", None)
        wanted = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or set(fields) != wanted:
            got = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
            raise DataError(
                f"{folder / FILE} is no record: found {got}, wanted {sorted(wanted)}; "
                "measure again into another folder"
            )
        return cls(**fields)


def write_record_json(path: Path, value: object) -> Path:
    """Write a JSON file atomically, and create its folder if it is missing."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, text)
    return path


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: It is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"there is no {path}; measure first, or name another folder") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); delete it and measure again") from error


def command_line(program: str, settings: Settings) -> str:
    """Return the command that repeats a measurement: the settings that differ from defaults.

    The folder of the data becomes DIR, and another absolute path its last name, as both mean
    nothing on other machines.

    >>> @dataclass(frozen=True)
    ... class Chosen:
    ...     steps: int = 3
    ...     out: Path = Path("records/x")
    ...     fast: bool = True
    >>> command_line("python -m benchmarks x", Chosen(steps=5, out=Path("/tmp/y"), fast=False))
    'python -m benchmarks x --steps 5 --out y --no-fast'
    """
    words = [*shlex.split(program)]
    for field in dataclasses.fields(settings):
        value, option = getattr(settings, field.name), field.name.replace("_", "-")
        if value == field.default or _are_same_items(value, field.default):
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
            continue
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            words.append(f"--empty-{option}")
        for item in items:
            words += [f"--{option}", "DIR" if field.name == "data_dir" else _format_path(item)]
    return shlex.join(words)


def _are_same_items(value: object, default: object) -> bool:
    return isinstance(value, Sequence) and isinstance(default, tuple) and (*value,) == default


def _format_path(value: object) -> str:
    """Return a value as text; of an absolute path only its last name."""
    if isinstance(value, Path) and value.is_absolute():
        return value.name
    return str(value)
