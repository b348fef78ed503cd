"""Matrix multiplication: driver, cache block, micro-kernel, packing, int8."""
