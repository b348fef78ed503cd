"""The CUDA target: kernels of the loop language on NVIDIA GPUs; what has none runs on the host.

`claims` says what it keeps, `target` starts; `backend` hands printers to `targets/gpu`, which has selection and joined
launches. `code` compiles, `driver` is the card, `runs` are runs and captured graphs, `library` is cuBLASLt.
"""
