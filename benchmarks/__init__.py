"""Measurements of Hocket beside its peers: ``python -m benchmarks NAME``.

They are no part of the installed package; nothing in it imports them.
"""
