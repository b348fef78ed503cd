"""Weights that stay in blocks of a quantised format ([0022](docs/design/0022-weights-stay-in-blocks.md)).

`elements` and `units` say what a block means; `stream` is the GEMV of many columns, `copied_blocks` that of few by bulk
copies; `packed_blocks` and `packed_tiles` are the weights as these read them.
"""
