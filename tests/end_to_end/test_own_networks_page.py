"""The code on the documentation page about own networks runs from top to bottom."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs/own-networks.md"


def test_the_code_of_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    with torch.random.fork_rng():
        exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    assert printed.startswith("Plan(cuts=(")
    assert "control flow depends on tensor values computed before it" in printed
