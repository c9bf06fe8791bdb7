"""From records to columns: what a payload is, which features a collection has, and Examples as NumPy arrays."""
