"""Branches and loops: tables within tables, and bodies that the host decides.

`plan` has the kernels of bodies, `frame` lays out their tables (`records`). `host` runs bodies with host steps, and
`host_chunks` several trips at a time.
"""
