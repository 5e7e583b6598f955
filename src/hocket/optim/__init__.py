"""Optimizers that come with Hocket, and the functions of the user that build one."""
