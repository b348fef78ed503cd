"""GPU kernels as code: `code` compiles by `ptx_compiler` and `linker`, `code_view` shows code to people."""
