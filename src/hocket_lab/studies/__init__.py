"""Studies: many trainings from one file, run side by side, compared in one record."""
