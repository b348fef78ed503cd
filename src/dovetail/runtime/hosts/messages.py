"""JSON objects, one a line, over sockets and pipes that never block a supervisor."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

MOST_BYTES = 1 << 20
"""Of a line; a peer that sends more speaks another protocol."""


class Lines:
    """Objects from a file descriptor; what has not arrived as a line yet is kept."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_open = True
        self._rest = b""
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self.descriptor

    def read(self) -> list[dict[str, Any]]:
        """The objects that have arrived; `is_open` is false once the other end is closed."""
        while self.is_open and len(self._rest) <= MOST_BYTES:
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.is_open = bool(piece)
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        found: list[dict[str, Any]] = []
        for line in lines:
            with suppress(ValueError):
                one: object = json.loads(line)
                if isinstance(one, dict):
                    found.append(cast("dict[str, Any]", one))
        if len(self._rest) > MOST_BYTES or (lines and not found):
            self.is_open = False
        return found


class Connection:
    """A socket to another supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.lines = Lines(sock.fileno())

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an object; a peer that has gone is found when it is read from."""
        with suppress(OSError):
            self.socket.sendall(line(message))

    def close(self) -> None:
        self.lines.is_open = False
        self.socket.close()


def line(message: Mapping[str, Any]) -> bytes:
    """An object as a line."""
    return json.dumps(message).encode() + b"\n"


__all__ = ["Connection", "Lines", "line"]
