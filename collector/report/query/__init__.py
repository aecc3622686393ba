"""Filters: the expression language of the Performance Analyzer's ``filters``, and what it selects among packets."""
