"""Branches and loops: tables within tables, and bodies that the host decides."""
