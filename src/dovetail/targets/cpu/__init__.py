"""The CPU target: kernels generated with LLVM for this machine, run by a pool of threads."""
