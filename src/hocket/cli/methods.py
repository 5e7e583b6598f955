"""``hocket methods``: the table of methods."""

from hocket.cli.output import print_result, print_tables
from hocket.errors import OptionError


def methods_command(*, stages: int = 4, remedies: bool = False, markdown: bool = False) -> int:
    """List the methods: delays, staleness, memory, locks, paper and options.

    Args:
        stages: Number of stages to count for; columns list stages 0, 1, ...
        remedies: List the remedies for late gradients instead.
        markdown: Print the table of methods as Markdown instead.

    Raises:
        OptionError: Both remedies and Markdown are given.
    """
    from hocket.runs.tables import method_markdown, method_table, option_table, remedy_table

    if markdown and remedies:
        raise OptionError("markdown is the table of methods, not of remedies; give one of both")
    if markdown:
        print_result(method_markdown(stages))
        return 0
    print_tables(*([remedy_table()] if remedies else [method_table(stages), option_table()]))
    return 0
