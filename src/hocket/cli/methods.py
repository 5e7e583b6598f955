"""``hocket methods``: the table of methods."""

from hocket.cli.output import console
from hocket.training.standard_stream import plain_console


def methods_command(*, stages: int = 4, markdown: bool = False) -> int:
    """List the methods: delays, staleness, memory, locks, paper and options.

    Args:
        stages: Number of stages to count for; columns list stages 0, 1, ...
        markdown: Print the table of methods as Markdown instead.
    """
    from hocket.runs.tables import method_markdown, method_table, option_table

    if markdown:
        console.print(method_markdown(stages), highlight=False, soft_wrap=True)
        return 0
    wide = console if console.is_terminal else plain_console("stdout", max(console.width, 150))
    wide.print(method_table(stages))
    wide.print(option_table())
    return 0
