"""Options: a name with options as text, and checks of values against what is wanted."""

from hocket.options.hints import wrong_options as wrong_options
from hocket.options.named import Named as Named
