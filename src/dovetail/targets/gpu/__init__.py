"""What GPUs of any maker share: which kernels a step becomes, and which steps share a launch.

`select` with its conditions `loops` `images` `data_kinds` `anchors`; `kernel` is what it makes. `launch_fusion` makes
fewer launches of a program, `persistent` passes of one kernel of layers that repeat. `backend` is the record that a
back end hands in: the printer of scheduled kernels, and the figures of its cards by which they are priced. A back end
adds its claims, a driver that loads and launches code, and the store's kinds; see `targets/cuda`.
"""
