"""Features that reading shards does not need: each uses the public names of the core and `Rows`."""
