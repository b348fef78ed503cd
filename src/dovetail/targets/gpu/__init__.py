"""What GPUs of any maker share: which kernels a step becomes, and which steps share a launch.

`steps` has the kernels of a whole plan, and `stored` keeps them as bytes. `select` with its conditions `loops` `images`
`data_kinds` `anchors` has those of a step; `kernel` is what it makes. `launch_fusion` makes fewer launches of a
program, `persistent` passes of one kernel of layers that repeat.

`backend` is the record that a back end hands in: the printer of scheduled kernels, and the figures of its cards by
which they are priced. A back end adds its claims, and a driver that loads code, launches it and has memory; see
`targets/cuda`.
"""
