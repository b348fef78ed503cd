"""What NVIDIA GPUs alone have: their intrinsics, persistent kernels, copies by the tensor memory accelerator."""
