"""Inference of schemas: payload types, content detection, survey, suggestions, report."""
