"""A language model that serves for long: many requests, some of them killed, broken or too many; memory stays flat."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from dovetail.language import LanguageModel
from dovetail.language.engine import Engine
from dovetail.language.openai import Bounds, Service
from dovetail.language.server import Server
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written

CLIENTS = 8
WARM = 0.3
"""Share of the requests after which memory counts."""


def serving(count: int, folder: Path, resident: Callable[[], int], growth: int) -> list[str]:
    """Requests of several clients to a tiny model; gives what was broken."""
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    path = folder / "tiny.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    model = LanguageModel(path, threads=1, cache=str(folder / "cache"))
    engine = Engine(model.programs, slots=4, waiting=16)
    server = Server(Service(model, engine, "tiny", Bounds(longest=64)), port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    broken: list[str] = []
    sizes: list[int] = []
    port = int(server.server_address[1])
    step = max(CLIENTS, count // 20)
    for start in range(0, count, step):
        shares = [range(start + c, min(start + step, count), CLIENTS) for c in range(CLIENTS)]
        clients = [threading.Thread(target=_client, args=(port, share, broken)) for share in shares]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        sizes.append(resident())
    server.close()
    thread.join(10.0)
    if thread.is_alive():
        broken.append("the server did not close")
    if (grown := sizes[-1] - sizes[min(int(len(sizes) * WARM), len(sizes) - 1)]) > growth:
        broken.append(f"{grown >> 20} MB more after {count} requests")
    return broken


def _client(port: int, numbers: range, broken: list[str]) -> None:
    for number in numbers:
        rng = random.Random(number)
        said = {"prompt": "hello " * rng.randint(1, 20), "max_tokens": rng.randint(1, 16), "seed": number}
        kind = rng.random()
        try:
            if kind < 0.1:
                _killed(port, json.dumps({**said, "max_tokens": 64}))
            else:
                bad = {"temperature": -1} if kind < 0.2 else {"stream": True} if kind < 0.4 else {}
                status = _asked(port, json.dumps({**said, **bad}))
                if status not in ((400,) if kind < 0.2 else (200, 429)):
                    broken.append(f"request {number}: status {status}")
        except OSError as error:
            broken.append(f"request {number}: {type(error).__name__}")


def _asked(port: int, body: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def _killed(port: int, body: str) -> None:
    """A client that hangs up once it has asked."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())


__all__ = ["serving"]
