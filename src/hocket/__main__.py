"""Entry point of ``hocket`` and ``python -m hocket``."""

import sys


def main() -> int:
    """Run the command line; without the package that parses it, name the extra to install."""
    try:
        from hocket.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cyclopts":
            raise
        print(
            "error: cyclopts is not installed; install it with: pip install 'hocket[cli]'",
            file=sys.stderr,
        )
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
