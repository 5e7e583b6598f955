"""One forward of the network, recorded call by call."""
