"""Alternatives to Hocket, each in its fastest configuration, as baselines for its speed.

A baseline has a number of processes and prepares a training in each of them.
"""
