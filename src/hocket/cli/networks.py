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
    from hocket import zoo
    from hocket.runs.catalogue import network_table

    if name is not None and name not in zoo.names():
        raise OptionError(unknown_name("network", name, zoo.names()))
    print_tables(network_table(zoo.names() if name is None else [name]))
    return 0
