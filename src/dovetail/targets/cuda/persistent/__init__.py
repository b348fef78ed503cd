"""Autotuning of persistent kernels: `tuning` in the first run of some sizes, `told_pauses` in reports."""
