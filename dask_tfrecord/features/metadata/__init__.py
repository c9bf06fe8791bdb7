"""Schemas and metadata files of TFDS and TensorFlow Metadata."""
