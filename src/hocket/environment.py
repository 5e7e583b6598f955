"""The birth certificate of a number: versions, machine and commit."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """What a result depends on beside its run: versions, machine, allocator and commit."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hocket": _hocket(),
        "commit": commit(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "allocator": {
            key: value
            for key, value in sorted(os.environ.items())
            if key.startswith("MALLOC_") or key in ("LD_PRELOAD", "GLIBC_TUNABLES")
        },
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def commit() -> str:
    """The commit of the source tree, with ``+`` if it was changed since; empty outside one."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if head and git("status", "--porcelain", "--", str(here)) else "")
    except FileNotFoundError:
        return ""


def _hocket() -> str:
    try:
        return version("hocket")
    except PackageNotFoundError:
        return "source"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")


def _memory_gib() -> float | None:
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= names.keys():
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
