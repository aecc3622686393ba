"""Kernel facilities in, events out."""
