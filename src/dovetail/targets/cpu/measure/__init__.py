"""Figures of this machine, which prices use.

`described` has those before a measurement, `peak` and `bandwidth` measure (in pinned `threads`), `figures` judges what
was measured, and `calibration` stores it.
"""
