"""From a plan to machine code that is kept.

Start at `build`; `compiler` with `code_cache` `llvm_calls` `lru`; `step_signature` and `attempt` for kernels that steps
share. Kept between processes: `store` `serial` `folder`. Weights: `weights` `packed_weights`. For reports: `variants`
`code_view`.
"""
