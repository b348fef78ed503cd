"""Persistent kernels: the kernels of all layers as parts of one launch, whose blocks stay.

Start at `kernel` (parts in levels, shared memory, copies ahead). Parts: `part` `bodies` `passes`. What blocks
send to each other as stamped words: `words` `own` `stuck`. Weights on their way: `stream`. Where time goes:
`trace`. [0026](docs/design/0026-kernels-whose-blocks-stay.md) has the design.
"""
