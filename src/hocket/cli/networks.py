"""``hocket networks``: the table of networks."""

from hocket.cli.output import print_tables
from hocket.errors import OptionError, unknown_name


def networks_command(name: str | None = None, /) -> int:
    """List the networks: parameters, layers and options.

    Args:
        name: The network to list alone.

    Raises:
        OptionError: There is no such network.
    """
    from hocket.runs.tables import network_table
    from hocket.zoo import NETWORKS

    if name is not None and name not in NETWORKS:
        raise OptionError(unknown_name("network", name, list(NETWORKS)))
    print_tables(network_table(list(NETWORKS) if name is None else [name]))
    return 0
