"""The CUDA target: claims and a machine model; nothing runs there yet."""
