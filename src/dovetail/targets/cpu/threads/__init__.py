"""The thread pool: worker threads that stay in compiled code.

`pool` starts them. As LLVM text: `pool_text` (steps and tiles), `stealing_text` (work stealing), `control_text`
(branches and loops), `trace_text`, with records of `fields`; `futex` is how they wait. `trace_buffer` reads traces.
"""
