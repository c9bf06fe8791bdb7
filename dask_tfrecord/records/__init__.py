"""TFRecord framing: reading and writing of records, their index, and damage."""
