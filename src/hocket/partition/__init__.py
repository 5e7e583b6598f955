"""Partition of a network into K stages."""

from hocket.partition.cutting import balanced_plan as balanced_plan
from hocket.partition.cutting import cut as cut
from hocket.partition.cutting import divide as divide
from hocket.partition.plan import Plan as Plan
from hocket.partition.recording.recorder import call_network as call_network
from hocket.partition.sequential import build_stages as build_stages
from hocket.partition.sequential import cuts_between_layers as cuts_between_layers
from hocket.partition.sequential import is_sequential as is_sequential
from hocket.partition.sequential import layers_in_order as layers_in_order
from hocket.partition.sequential import require_separate as require_separate
from hocket.partition.shared_weights import untie as untie
