"""``hocket sweep``: the trainings of a study, and their record."""

from pathlib import Path
from typing import Any

from hocket.cli.output import print_note, print_result


def sweep_command(
    study: Path,
    /,
    *,
    out: Path | None = None,
    jobs: int | None = None,
    data_dir: Path | None = None,
    network: list[str] | None = None,
    method: list[str] | None = None,
    data: list[str] | None = None,
) -> int:
    """Run the trainings of a study, several at a time, and compare them in one record.

    Called again, it runs what is missing, and continues what was stopped.

    Args:
        study: File of the study in TOML: options of `hocket train` below [base], and below
            [grid] lists of values to compare.
        out: Folder of the runs and of the record; sweeps/NAME if not given.
        jobs: Number of runs at a time; by default the study's.
        data_dir: Folder or file of the data set; by default the study's.
        network: A network own.py:function that the study names, to allow that its code runs.
        method: The same for a method or a remedy; give each.
        data: The same for a data set.
    """
    from hocket.distributed.launching.deferred_compiler import defer_compiler
    from hocket_lab.studies.report import results_table
    from hocket_lab.studies.study import Study
    from hocket_lab.studies.sweep import sweep

    # Run the study as it is changed here.
    defer_compiler()
    changes: dict[str, Any] = {} if jobs is None else {"jobs": jobs}
    if data_dir is not None:
        changes["base"] = {"data_dir": str(data_dir)}
    own = {"network": network or [], "method": method or [], "data": data or []}
    record = sweep(Study.read(study, own_code=own, **changes), out)
    # Print the table, and what is not in it.
    print_result(results_table(record.values))
    print_note(f"the record is in {record.folder}")
    if record.orphans:
        print_note(
            f"{len(record.orphans)} run folders belong to no run of the study as it is now: "
            f"{', '.join(record.orphans)}"
        )
    if record.kept:
        print_note(
            f"the record keeps the results of {len(record.kept)} runs that belong to no row of "
            "the study as it is now"
        )
    for failure in record.failures:
        print_note(f"failed: {failure}", "red")
    # Tell what is missing by the exit code as well.
    if record.stopped_by:
        print_note(
            f"interrupted; runs that are missing: {record.unfinished}; the same command goes on"
        )
        return 128 + record.stopped_by
    if record.unfinished:
        print_note(f"runs stopped by others: {record.unfinished}; the same command goes on")
    return 1 if record.failures or record.unfinished else 0
