"""A page that shows experiments in a browser: one file, which needs nothing else."""
