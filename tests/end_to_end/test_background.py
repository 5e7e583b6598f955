"""The tests themselves, started as a shell starts a job in the background."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tests_of_signals_pass_in_the_background_and_under_nohup():
    files = ("tests/unit/lab/report/test_live.py", "tests/unit/cli/test_cli_resume.py")
    tests = (sys.executable, "-m", "pytest", "-n0", *files, "-k", "ctrl_c or a_signal_leaves")
    ignoring = ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh")
    words = [*ignoring, *tests]
    done = subprocess.run(words, check=False, cwd=ROOT, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stdout.decode()
