"""The birth certificate of a number: versions, machine and code."""

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parent


def environment() -> dict[str, Any]:
    """Everything that a result depends on beside its run, as plain JSON."""
    head, dirty = commit()
    return {
        "commit": head,
        "dirty": dirty,
        "source": source_digest(),
        "versions": versions(),
        "machine": machine(torch.get_num_threads()),
    }


def versions() -> dict[str, str]:
    """Versions of Python, PyTorch and Hocket."""
    try:
        own = metadata.version("hocket")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "hocket": own,
    }


def machine(threads: int) -> dict[str, Any]:
    """Processor, accelerator, cores, threads used, memory in MiB, settings of the allocator."""
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
    """The first 12 digits of the SHA-256 of the package's Python files and their names."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit() -> tuple[str | None, bool | None]:
    """Commit of the checkout the package lies in, and whether something differs from it."""
    head = _git("rev-parse", "HEAD")
    tracked = _git("ls-files", "--", str(PACKAGE))
    if not head or not tracked:
        return None, None
    return head, bool(_git("status", "--porcelain", "--", str(PACKAGE)))


def _git(*words: str) -> str | None:
    """What a git command prints in the folder of the package; None if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    """Name of the processor, as far as the system tells it."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
