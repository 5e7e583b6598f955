"""``hocket networks``: the table of networks."""

from hocket.cli.output import print_tables


def networks_command() -> int:
    """List the networks: parameters, layers and options."""
    from hocket.runs.catalogue import network_table

    print_tables(network_table())
    return 0
