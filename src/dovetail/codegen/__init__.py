"""Code generation: printers of the loop language, and builders that templates write their kernels with."""
