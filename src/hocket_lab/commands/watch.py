"""``hocket watch``: a report in the browser that follows its runs."""

import os
from pathlib import Path

from hocket.cli.output import print_note
from hocket.errors import RunFolderError


def watch_command(*folders: Path, port: int = 8470) -> int:
    """Show the report of runs in a browser of this machine while they train.

    The page is loaded again when the files of the runs change, and waits for the first run
    where there is none yet. Ctrl-C ends the server; the trainings go on.

    Args:
        folders: Folders of runs, folders of such folders, or folders of studies.
        port: Port of 127.0.0.1 to listen on; 0 for any that is free.

    Raises:
        RunFolderError: A file is named, or nothing.
    """
    from hocket_lab.report.find_runs import find_runs
    from hocket_lab.report.live import LiveReport

    try:
        find_runs(folders)
    except RunFolderError as error:
        if not folders or any(map(os.path.isfile, folders)):
            raise
        print_note(f"{error}; the page waits for the first run")
    with LiveReport(folders, port) as server:
        print_note(f"the report is at {server.address} and follows its runs; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print_note("the report is no longer served")
    return 0
