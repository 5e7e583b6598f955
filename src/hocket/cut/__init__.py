"""From a network to K stages."""

from hocket.cut.chain import between_layers as between_layers
from hocket.cut.chain import chain as chain
from hocket.cut.chain import is_chain as is_chain
from hocket.cut.chain import require_separate as require_separate
from hocket.cut.chain import stages_of as stages_of
from hocket.cut.plan import Plan as Plan
from hocket.cut.stages import balanced as balanced
from hocket.cut.stages import cut as cut
from hocket.cut.stages import divide as divide
