"""Aggregations that obey the merge law. Pure."""
