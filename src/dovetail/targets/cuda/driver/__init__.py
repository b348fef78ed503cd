"""The CUDA driver, the card and its memory.

Start at `driver`; `api` are its functions through ctypes, `architectures` what we compile for. Memory: `memory`
`shortage`; time: `streams` `timing` `calibration`; `tensor_map` describes a tensor to the TMA.
"""
