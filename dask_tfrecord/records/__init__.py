"""TFRecord framing: records read and written, and the index of where they lie."""
