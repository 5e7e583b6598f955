"""Entry point of ``hocket`` and ``python -m hocket``."""

import sys


def main() -> int:
    """Run the command line; without the package that parses it, name the extra to install.

    Returns:
        The exit code.

    Raises:
        ModuleNotFoundError: A module other than that package is not installed.
    """
    from hocket.standard_stream import fill_standard_streams

    fill_standard_streams()
    try:
        from hocket.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cyclopts":
            raise
        from hocket.errors import missing_extra

        problem = missing_extra("cyclopts", "cli", "the command line")
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
