"""Writers and readers of stores, and the rows that they share."""
