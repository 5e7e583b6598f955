"""Actions that are recorded once and replayed, as CUDA graphs, without the host."""
