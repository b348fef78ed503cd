"""A network between two processes that a test can break: bytes go through here, until they do not."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress

_PAUSE = 0.05
_PIECE = 1 << 16


class Network:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._ends: dict[socket.socket, socket.socket] = {}
        self._silent: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close every connection; new ones can be made."""
        with self._lock:
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Every connection stays open, and nothing arrives any more; new ones can be made."""
        with self._lock:
            self._silent |= set(self._ends)

    def end(self) -> None:
        """Close everything."""
        self._over.set()
        self._thread.join()
        for one in (self._server, *self._ends):
            one.close()

    def _forward(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._server, selectors.EVENT_READ)
            while not self._over.is_set():
                for key, _ in ready.select(_PAUSE):
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj is self._server:
                        for end in self._accepted():
                            ready.register(end, selectors.EVENT_READ)
                    elif not self._moved(key.fileobj):
                        ready.unregister(key.fileobj)

    def _accepted(self) -> tuple[socket.socket, ...]:
        near = self._server.accept()[0]
        try:
            far = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            near.close()
            return ()
        with self._lock:
            self._ends |= {near: far, far: near}
        return near, far

    def _moved(self, end: socket.socket) -> bool:
        """Forward what has arrived; whether more may come."""
        with self._lock:
            other = self._ends[end]
            if end in self._silent:
                return False
        with suppress(OSError):
            piece = end.recv(_PIECE)
            if piece:
                other.sendall(piece)
                return True
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
        return False


__all__ = ["Network"]
