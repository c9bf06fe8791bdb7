"""Pixels of encoded images: decoders and encoders, one module per codec."""
