"""Extension of mkdocstrings: docstrings as Markdown."""

import inspect
import re
from typing import Any

import griffe

from hocket import Trainer


class PlainDocstrings(griffe.Extension):
    """Docstrings as Markdown: sessions of Python in fences, roles as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.name == "Trainer" and obj.docstring is not None:
            obj.docstring.value = inspect.getdoc(Trainer) or ""  # with the texts of options
        if obj.docstring is not None:
            text = re.sub(r":\w+:(`[^`]+`)", r"\1", obj.docstring.value)
            session = r"((?:^ *>>> .*\n?(?:^ *\S.*\n?)*)+)"
            obj.docstring.value = re.sub(
                session, lambda m: f"```pycon\n{m[1].rstrip()}\n```\n", text, flags=re.MULTILINE
            )
