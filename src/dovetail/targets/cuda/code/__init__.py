"""GPU kernels as code: PTX, machine code, the store.

`code` compiles by `ptx_compiler` and `linker`, `stored` keeps compiled plans as bytes, `code_view` shows code to
people.
"""
