"""The live view of an experiment: er_top."""
