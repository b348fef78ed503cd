"""A call of a program: frames and their launch tables, prepared and repeated calls.

`launch_frame` lays out `launch_table` and `launch_args` for one set of sizes; `prepared_call` and `repeated_call` are
runs that need only addresses; `result_roots` says which outputs have memory of their own. `interpreter` is the judge of
all of it.
"""
