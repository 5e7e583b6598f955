"""``hocket data``: the table of data sets."""

from hocket.cli.output import print_tables


def data_command() -> int:
    """List the data sets: their files and options."""
    from hocket.runs.tables import data_table

    print_tables(data_table())
    return 0
