"""Faults made on purpose: trainings to which they happen, and whether what is promised comes.

Nothing outside of this package knows of it. Faults reach a process only as an argument of the
training that is started for them here; there is no option and no variable that lets one in
anywhere else.
"""
