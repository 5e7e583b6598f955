"""Workloads, processes, timing and records, which the measurements share."""
