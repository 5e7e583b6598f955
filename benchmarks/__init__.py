"""Measurements of Hocket compared with alternatives: ``python -m benchmarks NAME``.

The installed package neither contains nor imports them.
"""
