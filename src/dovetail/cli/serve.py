"""`dovetail serve`: a language model for OpenAI-compatible clients."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.language_options import FILE, LOADING, loaded
from dovetail.errors import LoadError, OptionError
from dovetail.language.engine import Engine
from dovetail.language.openai import Bounds, Service
from dovetail.language.server import Limits, Server


def run(args: argparse.Namespace) -> Answer:
    """Load the model, listen, and serve until a signal ends it."""
    bounds = (args.slots, args.waiting, args.longest, args.body, args.connections)
    if min(bounds) < 1 or not args.seconds > 0 or not 0 <= args.port < 65536:
        raise OptionError("a limit or port out of range", hint="limits are 1 or more, and a port is below 65536")
    if args.slots > _MOST_SLOTS:
        raise OptionError(f"--slots {args.slots}", hint=f"{_MOST_SLOTS:,} at most; each has a KV cache of its own")
    model = loaded(args)
    # What the first request needs is compiled before it comes.
    _ = model.programs.batch, model.tokenizer
    engine = Engine(model.programs, slots=args.slots, waiting=args.waiting)
    bounds = Bounds(longest=args.longest, seconds=args.seconds)
    service = Service(model, engine, args.name or Path(args.model).stem, bounds)
    limits = Limits(body=args.body, connections=args.connections)
    server = Server(service, host=args.host, port=args.port, key=_key(args.key), limits=limits)
    return Answer("closed", pieces=_served(server))


_MOST_SLOTS = 1024


def _served(server: Server) -> Iterator[str]:
    """Where it listens; then it serves. SIGINT and SIGTERM end it cleanly."""
    host, port = server.server_address[:2]
    name = f"[{host!s}]" if ":" in str(host) else str(host)
    yield f"http://{name}:{port}/v1 serves {server.service.name}; Ctrl-C ends it\n"
    closer = threading.Thread(target=server.close, daemon=True)

    def close(*_: Any) -> None:
        if not closer.ident:
            closer.start()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, close)
    server.serve_forever(poll_interval=0.1)
    if closer.ident:
        closer.join(15.0)


def _key(said: str | None) -> str | None:
    """The key of clients: text, or @file."""
    if said is None or not said.startswith("@"):
        return said
    try:
        found = Path(said[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"the key in {said[1:]} cannot be read", hint="check the file") from error
    if not found:
        raise LoadError(f"no key in {said[1:]}", hint="write one line with the key")
    return found


def _count(name: str, doc: str, default: int) -> Argument:
    return Argument(name, f"{doc} ({default})", {"metavar": "COUNT", "type": int, "default": default})


COMMAND = Command(
    "serve",
    "serve a language model to OpenAI-compatible clients",
    (
        FILE,
        Argument("--host", "the address to listen on (127.0.0.1)", {"metavar": "ADDRESS", "default": "127.0.0.1"}),
        _count("--port", "the port; 0 for a free one", 8080),
        Argument("--key", "what clients send as their key; @FILE reads it from a file", {"metavar": "KEY"}),
        Argument("--name", "the name of the model for clients (that of the file)", {"metavar": "NAME"}),
        _count("--slots", "requests that decode at once", 4),
        _count("--waiting", "requests that may wait for a slot", 64),
        _count("--longest", "tokens of one answer at most", 4096),
        _count("--body", "bytes of one request at most", Limits().body),
        _count("--connections", "connections at once", Limits().connections),
        Argument("--seconds", "time of one request (600)", {"metavar": "NUMBER", "type": float, "default": 600.0}),
        *LOADING,
    ),
    run,
)
