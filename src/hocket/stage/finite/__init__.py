"""NaN and infinite values: where they come from, and what happens then."""
