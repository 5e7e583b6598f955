"""Detection of processes that have died or hang."""
