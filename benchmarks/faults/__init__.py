"""Fault injection: small trainings under faults, whose outcome is compared with guarantees.

Nothing outside of this package knows of it. Faults reach a process only as an argument of the
training that is started here; no option and no variable injects one anywhere else.
"""
