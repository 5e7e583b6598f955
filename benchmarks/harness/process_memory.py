"""Memory of this process: what it holds now, a new start for its peak, and what was freed."""

import ctypes
import sys
from pathlib import Path

from hocket.runs.peak_memory import STATUS, peak_mib, status_mib

CLEAR = Path("/proc/self/clear_refs")
# From malloc.h and from the kernel's prctl.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
PR_SET_THP_DISABLE = 41


def reset_peak() -> float:
    """Reset the peak to the present memory, as far as possible, and return it in MiB."""
    if not STATUS.is_file():
        return peak_mib()
    try:
        CLEAR.write_text("5")  # 5: reset the peak
    except OSError:
        return peak_mib()
    return held_mib()


def held_mib() -> float:
    """Return the memory that this process holds now, in MiB.

    Raises:
        OSError: The system is not Linux, and has no file that tells.
    """
    return status_mib("VmRSS")


def release_free_memory() -> None:
    """Return free memory from the C library to the system, now and from here on.

    Otherwise the library keeps freed memory for later, and the process seems to hold far more
    than it uses; huge pages have the same effect, as the last one of each tensor is hardly
    used. This overrules settings of the environment. It works with glibc only.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "malloc_trim"):
        return
    library.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    library.mallopt(M_TRIM_THRESHOLD, 65536)
    library.mallopt(M_TOP_PAD, 0)
    library.mallopt(M_MMAP_THRESHOLD, 65536)
    library.malloc_trim(0)
