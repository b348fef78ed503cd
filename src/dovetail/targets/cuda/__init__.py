"""The CUDA target: kernels of the loop language on NVIDIA GPUs; what has none runs on the host."""
