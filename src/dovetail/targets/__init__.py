"""Targets: what each keeps, and how it compiles and runs."""
