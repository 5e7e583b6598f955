"""A session, which a trainer opens at the first batch: world, stages and engine."""
