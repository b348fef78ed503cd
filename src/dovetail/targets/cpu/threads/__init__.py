"""The thread pool: worker threads that sit in compiled code, work stealing, control flow, traces."""
