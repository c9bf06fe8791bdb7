"""What a reader of shards can live without: each uses the public names of the core and `Rows`."""
