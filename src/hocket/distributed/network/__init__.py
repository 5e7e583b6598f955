"""Addresses, sockets and devices of this machine."""
