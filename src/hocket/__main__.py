"""``python -m hocket`` is the command line."""

import sys

from hocket.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
