"""Matrix multiplication: driver, cache block, micro-kernel, packing; weights in bytes, two bytes and blocks."""
