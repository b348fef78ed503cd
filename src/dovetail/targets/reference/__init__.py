"""The reference target: every step runs as NumPy, and is the judge of every other target.

`target`, with `claims`; `interpreter` computes values one by one, `planned` the steps of a plan in its memory.
"""
