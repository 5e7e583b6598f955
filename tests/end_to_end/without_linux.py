"""Train in this process as on another system: without what that system lacks.

Arguments: the system, and a folder for the run.
"""

import os
import signal
import sys
import sysconfig
import types
from importlib import import_module
from pathlib import Path

# What each system lacks, of all that Linux has and Hocket uses.
LACKS = {
    "darwin": {os: "memfd_create sched_getaffinity"},
    "win32": {
        os: "memfd_create sched_getaffinity fork killpg setsid O_NOFOLLOW O_NONBLOCK "
        "O_DIRECTORY",
        signal: "SIGHUP SIGKILL SIGCHLD SIGCONT SIGSTOP pthread_sigmask",
    },
}
MODULES = {"darwin": [], "win32": ["fcntl", "resource", "termios", "pwd", "grp"]}


def become(system):
    """Hide what the system lacks, except from libraries, which have found what they need."""
    for library in ("cyclopts", "rich.progress", "torch"):
        import_module(library)
    sysconfig.get_config_vars()  # from a file that has the system's name
    for module, names in LACKS[system].items():
        for name in names.split():
            delattr(module, name)
    for name in MODULES[system]:
        sys.modules[name] = None  # an import of it fails
    if system == "win32":
        sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *_: None)
    sys.platform = system


become(sys.argv[1])

from hocket.cli.main import main  # noqa: E402
from hocket.distributed.launching.launch import launch  # noqa: E402
from hocket.errors import OptionError  # noqa: E402
from hocket.runs import environment  # noqa: E402

environment.STATUS = Path("no such file")
words = "train --network mlp:hidden=[8] --stages 2 --method fdg --epochs 1 --checkpoint-every 2"
data = "synthetic:shape=[8],classes=3,examples=64,test_examples=16"
code = main([*words.split(), "--data", data, "--run-dir", sys.argv[2]])
try:
    launch(print, processes=2)
except OptionError as refusal:
    print(refusal)
sys.exit(code)
