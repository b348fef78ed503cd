"""Measuring: dovetail beside its peers, on the same models, in the same run."""
