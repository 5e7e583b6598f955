"""Environment of a result: versions, machine, source code and memory."""

import hashlib
import math
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hocket.errors import HocketError
from hocket.version import __version__

PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of the package hocket."""
STATUS = Path("/proc/self/status")


def environment(threads: int) -> dict[str, Any]:
    """Describe what a result with so many threads depends on besides its configuration."""
    head, dirty = commit()
    return {
        "commit": head,
        "dirty": dirty,
        "source": source_digest(),
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "hocket": __version__,
        },
        "machine": machine(threads),
    }


def machine(threads: int) -> dict[str, Any]:
    """Describe processor, GPU, cores, threads used, memory in MiB and allocator settings."""
    allocator = {
        name: Path(value).name if name == "LD_PRELOAD" else value
        for name, value in sorted(os.environ.items())
        if name.startswith("MALLOC_") or name in ("LD_PRELOAD", "GLIBC_TUNABLES")
    }
    return {
        "cpu": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "allocator": allocator,
    }


def source_digest() -> str:
    """Return the first 12 digits of the SHA-256 of the package's Python files and names."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit() -> tuple[str | None, bool | None]:
    """Return the commit of the package's checkout, and True if its files differ from it.

    Both are None outside a checkout.
    """
    head = _git("rev-parse", "HEAD")
    tracked = _git("ls-files", "--", str(PACKAGE))
    if not head or not tracked:
        return None, None
    return head, bool(_git("status", "--porcelain", "--", str(PACKAGE)))


def _git(*words: str) -> str | None:
    """Run a git command in the folder of the package; None if it fails."""
    try:
        process = subprocess.run(
            ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _processor() -> str:
    """Return the name of the processor, as far as the system tells it."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB; NaN on Windows.

    On Linux a new program inherits the peak in ``ru_maxrss`` from its parent; the one in its
    status file is its own.
    """
    with suppress(OSError, HocketError):  # gVisor has the file without the field
        return status_mib("VmHWM")
    if sys.platform == "win32":
        return math.nan
    import resource

    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def status_mib(field: str) -> float:
    """Return a field of the status that Linux keeps of this process, in MiB.

    Raises:
        HocketError: The status has no such field.
    """
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 2**10
    raise HocketError(f"{STATUS} has no field {field}; memory cannot be measured here")
