"""Memory that this process has held at most."""

import sys
from pathlib import Path

from hocket.errors import HocketError

STATUS = Path("/proc/self/status")


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB.

    On Linux a new program inherits the peak in ``ru_maxrss`` from its parent; the one in its
    status file is its own.
    """
    if STATUS.is_file():
        return status_mib("VmHWM")
    import resource  # not on Windows

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
