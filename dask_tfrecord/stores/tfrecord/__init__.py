"""Writers of TFRecord shards."""
