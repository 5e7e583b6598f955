"""A stage as a part of the network's own forward."""
