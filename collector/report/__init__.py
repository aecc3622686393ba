"""Neutral tables made from an experiment."""
