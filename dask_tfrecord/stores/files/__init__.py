"""Writers of files: TFRecord shards, copies of them, and Parquet."""
