"""How much memory this process holds and has held."""

import ctypes
import sys
from pathlib import Path

from hocket.errors import HocketError

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
# Of malloc.h and of the kernel's prctl.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
PR_SET_THP_DISABLE = 41


def reset_peak() -> float:
    """Set the highest memory back to the present one, as far as possible, and give it."""
    if not STATUS.is_file():
        return peak_mib()
    try:
        CLEAR.write_text("5")  # 5: reset the peak
    except OSError:
        return peak_mib()
    return _status_mib("VmRSS")


def peak_mib() -> float:
    """The most memory this process has held.

    Linux hands the peak in ``ru_maxrss`` down from the parent to a new program; the one in its
    status file is the program's own.
    """
    if STATUS.is_file():
        return _status_mib("VmHWM")
    import resource  # not on Windows

    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def release_free_memory() -> None:
    """Have the C library return to the system what is free, now and from here on.

    Else it keeps what was freed for later, and a process seems to hold far more than it does;
    and so it does in huge pages, of which the last one of each tensor is hardly used. Settings
    of the environment are overruled. Only glibc is told; others are left as they are.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "malloc_trim"):
        return
    library.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    library.mallopt(M_TRIM_THRESHOLD, 65536)
    library.mallopt(M_TOP_PAD, 0)
    library.mallopt(M_MMAP_THRESHOLD, 65536)
    library.malloc_trim(0)


def _status_mib(field: str) -> float:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 2**10
    raise HocketError(f"{STATUS} has no field {field}; memory cannot be measured here")
