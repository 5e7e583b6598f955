"""From a network to K stages."""

from hocket.cut.chain import chain as chain
from hocket.cut.chain import stages_of as stages_of
from hocket.cut.plan import Plan as Plan
from hocket.cut.plan import balanced as balanced
