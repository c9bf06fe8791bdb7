"""Active dask scheduler: workers and memory, progress, cancellation."""
