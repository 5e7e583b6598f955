"""``hocket methods``: the table of methods."""

from hocket.cli.output import print_result, print_tables
from hocket.errors import OptionError


def methods_command(
    *, stages: int | None = None, remedies: bool = False, markdown: bool = False
) -> int:
    """List the methods: delays, staleness, memory, locks, paper and options.

    Args:
        stages: Number of stages to count for, 4 if not given; columns list stages 0, 1, ...
        remedies: List the remedies for late gradients instead.
        markdown: Print the table of methods as Markdown instead.

    Raises:
        OptionError: There is no stage, or an option has no effect on the remedies.
    """
    from hocket.runs.tables import method_markdown, method_table, option_table, remedy_table

    if remedies and (markdown or stages is not None):
        raise OptionError(
            "stages and markdown are for the table of methods, not of remedies; drop them, or "
            "--remedies"
        )
    count = 4 if stages is None else stages
    if markdown:
        print_result(method_markdown(count))
    else:
        print_tables(*([remedy_table()] if remedies else [method_table(count), option_table()]))
    return 0
