"""Passes, one a file, and the pipeline that runs them."""
