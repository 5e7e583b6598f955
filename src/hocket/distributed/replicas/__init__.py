"""Sums over the replicas of a stage."""
