"""What GPUs of any maker share: which kernels a step becomes, and which steps share a launch.

`select` with its conditions `loops` `images` `data_kinds` `anchors`; `kernel` is what it makes. `launch_fusion` makes
fewer launches of a program, `persistent` passes of one kernel of layers that repeat.
"""
