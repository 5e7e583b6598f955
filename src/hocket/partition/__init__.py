"""From a network to K stages."""

from hocket.partition.cut import balanced as balanced
from hocket.partition.cut import cut as cut
from hocket.partition.cut import divide as divide
from hocket.partition.plan import Plan as Plan
from hocket.partition.sequential import between_layers as between_layers
from hocket.partition.sequential import chain as chain
from hocket.partition.sequential import is_chain as is_chain
from hocket.partition.sequential import require_separate as require_separate
from hocket.partition.sequential import stages_of as stages_of
