"""An HTTP server for OpenAI-compatible clients, on the standard library.

A connection has a thread, a request has a time to arrive in, a body has a size, and connections, waiting requests and
tokens have limits. A client that hangs up leaves the batch before the next step.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast
from urllib.parse import unquote

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError, LoadError, OptionError, ServiceError, UnsupportedError
from dovetail.frontends.shared.messages import printable
from dovetail.language.engine import Ticket
from dovetail.language.generation import Piece
from dovetail.language.openai import Json, Reply, Service
from dovetail.version import __version__

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_POSTED = ("/chat/completions", "/completions", "/embeddings")
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take of a server."""

    body: int = 4 << 20
    """Bytes of a request."""
    connections: int = 128
    arrival: float = 30.0
    """Seconds in which a request has to arrive, and after which an idle connection is closed."""


class Server(HTTPServer):
    """Serves one model. `serve_forever` runs it; `close` ends it."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        key: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        if host not in _LOOPBACK and not key:
            raise OptionError(f"listening on {host} without a key", hint="other machines reach it; set a key")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.service, self.key, self.limits = service, key, limits or Limits()
        self.is_local = host in _LOOPBACK
        self._free = threading.BoundedSemaphore(self.limits.connections)
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except (OSError, TypeError, ValueError, OverflowError) as error:  # the last three of names that are none
            why = getattr(error, "strerror", None) or str(error)
            where = printable(f"{host}:{port}")
            raise OptionError(f"{where} cannot be used: {why}", hint="choose another address or port") from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for a connection; above the limit it is told to come again."""
        if not self._free.acquire(blocking=False):
            try:
                request.settimeout(1.0)
                request.sendall(_FULL)
            except OSError:
                pass
            self.shutdown_request(request)
            return
        with self._open_lock:
            self._open.add(request)
        threading.Thread(target=self._connection, args=(request, client_address), daemon=True).start()

    def _connection(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, ValueError):
            pass  # the client has gone
        finally:
            self.shutdown_request(request)
            with self._open_lock:
                self._open.discard(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that fails says nothing on the terminal."""

    def close(self) -> None:
        """Take no more connections, end requests, and close those that are open."""
        self.shutdown()
        self.server_close()
        self.service.engine.close()
        # Threads that write an answer get a moment for it.
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            with self._open_lock:
                if not self._open:
                    return
                for request in self._open:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RD)
            time.sleep(0.02)


class _Arriving(io.RawIOBase):
    """Bytes of a connection that have to arrive before a deadline."""

    def __init__(self, of: socket.socket) -> None:
        self._of = of
        self.deadline = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self._of.settimeout(left)
        return self._of.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"dovetail/{__version__}", ""
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._arriving = _Arriving(self.connection)
        self.rfile = io.BufferedReader(self._arriving)

    @property
    def _of(self) -> Server:
        return cast(Server, self.server)

    def handle_one_request(self) -> None:
        self._arriving.deadline = time.monotonic() + self._of.limits.arrival
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what clients send would be on the terminal."""

    def do_GET(self) -> None:
        """The models, and whether the server works."""
        # An unread body would be taken for the next request.
        has_body = self.headers.get("Content-Length", "0").strip() != "0" or "Transfer-Encoding" in self.headers
        self.close_connection = self.close_connection or has_body
        self._guarded(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Chats, completions and embeddings."""
        self._guarded(self._post)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """An error of the protocol, in the form of all others."""
        self.close_connection = True
        self._has_begun = False
        if self.request_version == "HTTP/0.9":
            self.request_version = self.protocol_version
        if code == 501:
            self._fail(405, "this method is not built", "invalid_request_error", "use GET or POST")
        else:
            self._fail(code, (message or "the request is malformed")[:100], "invalid_request_error")

    def _get(self) -> None:
        service = self._of.service
        path = self.path.partition("?")[0]
        if path in ("/v1/models", "/models"):
            self._send(200, service.models())
        elif unquote(path).removeprefix("/v1") == f"/models/{service.name}":
            self._send(200, service.described())
        elif path == "/health":
            active, waiting = service.engine.load()
            self._send(200, {"status": "ok", "active": active, "waiting": waiting})
        elif path.removeprefix("/v1") in _POSTED:
            self._fail(405, "this path takes requests", "invalid_request_error", "use POST")
        else:
            self._fail(404, "there is nothing at this path", "invalid_request_error")

    def _post(self) -> None:
        service, said = self._of.service, self._body()
        path = self.path.partition("?")[0].removeprefix("/v1")
        match path:
            case "/chat/completions":
                self._reply(service.chat(said, self._waits))
            case "/completions":
                self._reply(service.complete(said, self._waits))
            case "/embeddings":
                self._reply(service.embed(said))
            case "/models" | "/health":
                self._fail(405, "this path takes no requests", "invalid_request_error", "use GET")
            case _:
                self._fail(404, "there is nothing at this path", "invalid_request_error")

    def _guarded(self, answer: Any) -> None:
        """Answer; whatever is wrong becomes a status."""
        self._has_begun = False
        try:
            self._check_client()
            answer()
        except _Refused as refused:
            self.close_connection = True
            self._fail(refused.status, refused.message, "invalid_request_error")
        except ServiceError as error:
            self._fail(error.status, error.message, "server_error", error.hint)
        except UnsupportedError as error:
            self._fail(400, error.message, "unsupported", error.hint)
        except LoadError as error:  # the model's file, and not the request
            self._fail(500, error.message, "server_error", error.hint)
        except DovetailError as error:
            self._fail(400, error.message, "invalid_request_error", error.hint)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except RecursionError:
            self._fail(400, "the request nests too deep", "invalid_request_error")
        except Exception as error:  # a fault of ours is one answer, and not the end of the server
            self._fail(500, f"{type(error).__name__}", "server_error")

    def _check_client(self) -> None:
        of = self._of
        host = self.headers.get("Host", "").strip()
        name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
        if of.is_local and name not in _LOOPBACK:
            # A page of another site that has its name point here must not get through.
            raise _Refused(403, "this server answers to localhost")
        if of.key is not None:
            said = self.headers.get("Authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(said, f"Bearer {of.key}".encode()):
                raise _Refused(401, "the key is missing or wrong")

    def _body(self) -> Any:
        if self.headers.get("Transfer-Encoding"):
            raise _Refused(411, "send the body with its length")
        given = set(self.headers.get_all("Content-Length", []))
        if len(given) > 1:
            raise _Refused(400, "the body has several lengths")
        length = next(iter(given), "")
        if not length.isascii() or not length.isdigit() or len(length) > 18:
            raise _Refused(411, "send the body with its length")
        if int(length) > self._of.limits.body:
            raise _Refused(413, f"a body has {self._of.limits.body:,} bytes at most")
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415, "send application/json")
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise _Refused(415, "send the body as it is, without Content-Encoding")
        raw = self.rfile.read(int(length))
        if len(raw) < int(length):
            raise ConnectionResetError("the client has gone")
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _Refused(400, "the body is no JSON, or nests too deep") from error

    def _waits(self, ticket: Ticket) -> Iterator[Piece]:
        """The pieces of a ticket; a client that hangs up cancels it."""
        while True:
            piece = ticket.next(timeout=0.2)
            if piece is None:
                self._check_connected(ticket)
                continue
            yield piece
            if piece.end:
                return

    def _check_connected(self, ticket: Ticket) -> None:
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            gone = bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            gone = True
        if gone:
            ticket.cancel()
            raise ConnectionResetError("the client has gone")

    def _reply(self, reply: Reply) -> None:
        if reply.one is not None:
            self._send(200, reply.one)
        elif reply.stream is not None:
            self._stream(reply.stream)

    def _stream(self, parts: Iterator[Json]) -> None:
        """Server-sent events; an error in the middle is an event, too."""
        first = next(parts, None)  # errors before the first part are statuses
        self._has_begun = True
        self.connection.settimeout(self._of.limits.arrival)
        self.send_response(200)
        for name, value in (("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache")):
            self.send_header(name, value)
        # Clients of HTTP/1.0 read up to the end of the connection.
        self._is_chunked = self.request_version != "HTTP/1.0"
        if self._is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        try:
            if first is not None:
                self._event(json.dumps(first))
            for part in parts:
                self._event(json.dumps(part))
        except DovetailError as error:
            self._event(json.dumps({"error": {"message": error.message, "type": "server_error", "code": None}}))
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
        self._event("[DONE]")
        if self._is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        raw = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n" if self._is_chunked else raw)

    def _send(self, status: int, said: Json) -> None:
        raw = json.dumps(said).encode()
        self._has_begun = True
        self.connection.settimeout(self._of.limits.arrival)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        if status == 405:
            self.send_header("Allow", "GET, HEAD, POST")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def _fail(self, status: int, message: str, kind: str, hint: str = "") -> None:
        if self._has_begun:
            self.close_connection = True
            return
        said = f"{message}; {hint}" if hint else message
        self._send(status, {"error": {"message": said, "type": kind, "param": None, "code": None}})


class _Refused(Exception):
    """A request that is refused before it is read."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message
        super().__init__(message)


__all__ = ["Limits", "Server"]
