"""Kernel families in the loop language, one file each: map, rows, reduce, move, gather and so on."""
