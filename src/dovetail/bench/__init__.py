"""Measuring: dovetail and its peers, on the same models, in the same run."""
