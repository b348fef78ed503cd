"""Runs and captured graphs.

`run` makes a plan's kernels, `bound_plan` puts its parameters on the device, `runner` runs it by frames (`frame`,
`late_sizes`, `foreign_inputs`). `graph` captures launches, `repeat` and `replay` enqueue them by one call,
`launch_code` without Python.
"""
