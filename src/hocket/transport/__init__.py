"""How a packet reaches the neighbour."""
