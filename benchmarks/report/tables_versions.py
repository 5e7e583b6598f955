"""Table of the versions of Python and PyTorch under which tests were run."""

from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table


def versions_table(record: Record) -> str:
    """Return a table with a line for each interpreter, and the failed tests below it."""
    heads = ("Python", "PyTorch", "NumPy", "passed", "failed", "skipped", "commit")
    keys = ("python", "torch", "numpy", "passed", "failed", "skipped")
    lines = [[*(str(row[key]) for key in keys), str(row["commit"])[:12]] for row in record.rows]
    tests = ", ".join(f"`{test}`" for test in record.settings["tests"])
    shown = [markdown_table(heads, lines), f"Numbers of tests, of {tests}."]
    failures = [
        f"* Python {row['python']} with PyTorch {row['torch']}: `{name}`"
        for row in record.rows
        for name in row["failures"]
    ]
    if failures:
        shown.append("Failed:\n\n" + "\n".join(failures))
    return "\n\n".join(shown)
