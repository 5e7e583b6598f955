"""Options: a name with options as text, and checks of values against what is wanted."""

from hocket.options.hints import argument_hints as argument_hints
from hocket.options.hints import wrong_fields as wrong_fields
from hocket.options.hints import wrong_options as wrong_options
from hocket.options.named import Named as Named
from hocket.options.named import split_at_commas as split_at_commas
from hocket.options.ranges import MAX_SEED as MAX_SEED
from hocket.options.ranges import MAX_TIMEOUT_S as MAX_TIMEOUT_S
from hocket.options.ranges import Range as Range
from hocket.options.ranges import check_choice as check_choice
from hocket.options.ranges import out_of_range as out_of_range
from hocket.options.ranges import wrong_choice as wrong_choice
from hocket.options.require import require_functions as require_functions
from hocket.options.require import require_list as require_list
from hocket.options.require import wrong_functions as wrong_functions
