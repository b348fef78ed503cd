"""The futex system call of Linux: its number and its operations."""

from __future__ import annotations

SYSCALL_ARM, SYSCALL_X86 = 98, 202
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
WAKE_ALL = 2**31 - 1


def futex_number(*, arm: bool) -> int:
    """The number of the system call."""
    return SYSCALL_ARM if arm else SYSCALL_X86


__all__ = ["FUTEX_WAIT_PRIVATE", "FUTEX_WAKE_PRIVATE", "WAKE_ALL", "futex_number"]
