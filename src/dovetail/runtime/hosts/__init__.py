"""Processes on several hosts that run one program: a supervisor on each watches a worker and its peers."""
