"""Training input: batches of NumPy arrays in a seeded order, and rows by number."""
