"""Workloads, processes, timing and records: the tools that measurements share."""
