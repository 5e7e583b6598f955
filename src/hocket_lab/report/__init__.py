"""Report of runs: one HTML file that loads nothing, to look at in a browser and to send."""
