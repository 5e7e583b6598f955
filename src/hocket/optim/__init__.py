"""Optimizers that come with Hocket, and the functions of the user that build one."""

from hocket.optim.muon import muon as muon
from hocket.optim.rotated_adam import rotated_adam as rotated_adam
