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

    if remedies:
        for name, given in (("stages", stages is not None), ("markdown", markdown)):
            if given:
                raise OptionError(
                    f"{name} is for the table of methods, not of remedies; drop --{name} or "
                    "--remedies"
                )
        print_tables(remedy_table())
        return 0
    count = 4 if stages is None else stages
    if markdown:
        print_result(method_markdown(count))
    else:
        print_tables(method_table(count), option_table())
    return 0
