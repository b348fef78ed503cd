"""What any GPU's printer has: threads, shared memory, lanes that exchange registers, matrices in registers."""
