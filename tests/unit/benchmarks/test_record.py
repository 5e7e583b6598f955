import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness.record import Record, command_line, read_json, write_record_json
from hocket.errors import DataError
from hocket.runs.environment import source_digest


@dataclass(frozen=True, kw_only=True)
class ExampleSettings:
    out: Path = Path("records/x")
    data_dir: Path | None = None
    seeds: Sequence[int] = (0, 1)
    rate: float = 0.1
    fast: bool = False
    threads: int = 1


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "65536")
    monkeypatch.setenv("LD_PRELOAD", "")
    settings = ExampleSettings(out=Path("y"), seeds=(1, 3), threads=2)
    begun = Record.from_settings("kill-recovery", settings, parameters=5)
    return begun.with_rows([{"row": "bp", "ratio": 1.0}])


def test_a_record_is_read_as_it_was_written_and_other_files_are_refused(record, tmp_path):
    record.write(tmp_path / "new" / "folder")
    assert Record.read(tmp_path / "new" / "folder") == record
    fields = dataclasses.asdict(record)
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    with pytest.raises(DataError, match="measure first"):
        Record.read(tmp_path)
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        Record.read(tmp_path)
    write_record_json(tmp_path / "record.json", {"name": "x"})
    with pytest.raises(DataError, match="is no record"):
        Record.read(tmp_path)


def test_a_record_has_the_choices_but_no_folders(record):
    assert record.name == "kill-recovery"
    assert record.command.endswith(" kill-recovery --out y --seeds 1 --seeds 3 --threads 2")
    kept = {"seeds": [1, 3], "rate": 0.1, "fast": False, "threads": 2, "parameters": 5}
    assert record.settings == kept


def test_a_record_knows_code_machine_and_allocator(record):
    assert record.source == source_digest()
    assert record.commit is None or len(record.commit) == 40
    assert (record.commit is None) == (record.dirty is None)
    assert set(record.versions) == {"python", "torch", "hocket"}
    assert record.machine["allocator"]["MALLOC_TOP_PAD_"] == "65536"
    assert record.machine["threads"] == 2
    assert record.machine["memory_mib"] > 0
    assert record.date.endswith("+00:00")


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path):
    path = write_record_json(tmp_path / "record.json", {"old": True})
    with pytest.raises(TypeError):
        write_record_json(path, {"new": object()})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record_json(path, float("nan"))
    assert read_json(path) == {"old": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_the_command_has_what_differs_and_no_folders_of_this_machine():
    settings = ExampleSettings(
        out=Path("/home/someone/x"),
        data_dir=Path("/home/someone/data"),
        seeds=[2, 3],
        rate=0.1,
        fast=True,
    )
    command = command_line("python -m benchmarks x", settings)
    assert command == "python -m benchmarks x --out x --data-dir DIR --seeds 2 --seeds 3 --fast"
    assert command_line("x", ExampleSettings(seeds=())) == "x --empty-seeds"
    same = ExampleSettings(seeds=[0, 1])
    assert command_line("python -m benchmarks x", same) == "python -m benchmarks x"
