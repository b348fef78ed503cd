"""What targets share at run time: launch tables, prepared calls, packed weights, buffers, code cache, store."""
