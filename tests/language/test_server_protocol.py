"""The server and the protocol: what is odd on a connection is answered in JSON, and harms no other request."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import OptionError
from dovetail.language import LanguageModel
from dovetail.language.server import Server
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written
from tests.language.test_server import call, model, served, server

__all__ = ["model", "server"]


def exchanged(server: Server, *requests: bytes) -> list[bytes]:
    """Answers to what is sent on one connection, up to its end."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=20) as connection:
        connection.sendall(b"".join(requests))
        found = b"".join(iter(lambda: connection.recv(65536), b""))
    return [b"HTTP/1.1 " + part for part in found.split(b"HTTP/1.1 ")[1:]]


def request(line: str, body: bytes = b"", *headers: str) -> bytes:
    given = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join([line, *given, "", ""]).encode() + body


@pytest.mark.slow
def test_clients_of_http_1_0_get_streams_without_chunks(server: Server) -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": 3, "stream": True}).encode()
    (answer,) = exchanged(server, request("POST /v1/completions HTTP/1.0", body))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head and b"chunked" not in head
    assert text.startswith(b"data: {") and text.endswith(b"data: [DONE]\n\n")


def test_a_body_that_nobody_reads_is_no_request(server: Server) -> None:
    hidden = request("GET /health HTTP/1.1")
    answers = exchanged(server, request("GET /v1/models HTTP/1.1", hidden), request("GET /health HTTP/1.1"))
    assert len(answers) == 1 and b"Connection: close" in answers[0]


METHODS = {
    "PUT /v1/models HTTP/1.1": b"405",
    "OPTIONS /v1/models HTTP/1.1": b"405",
    "GET /v1/completions HTTP/1.1": b"405",
    "POST /v1/models HTTP/1.1": b"405",
    "GET /v1/nothing HTTP/1.1": b"404",
    "GET /v1/models HTTP/3.0": b"505",
    "\x16\x03\x01": b"400",
}


@pytest.mark.parametrize("line", METHODS)
def test_what_the_protocol_does_not_have_is_said_in_json(server: Server, line: str) -> None:
    (answer,) = exchanged(server, request(line, b"{}" if line.startswith("POST") else b"", "Connection: close"))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == METHODS[line] and json.loads(text)["error"]["message"]


def test_heads_have_no_body_and_bodies_one_length_and_no_encoding(server: Server) -> None:
    (head,) = exchanged(server, request("HEAD /v1/models HTTP/1.1", b"", "Connection: close"))
    assert b" 200 " in head and head.endswith(b"\r\n\r\n")
    (lengths,) = exchanged(server, request("POST /v1/completions HTTP/1.1", b"{}", "Content-Length: 9"))
    (packed,) = exchanged(server, request("POST /v1/completions HTTP/1.1", b"{}", "Content-Encoding: gzip"))
    assert b" 400 " in lengths and b" 415 " in packed


@pytest.mark.parametrize("host", ["a..b", "\ud800", "nowhere.invalid"])
def test_addresses_that_are_none_are_refused(server: Server, host: str) -> None:
    with pytest.raises(OptionError, match="cannot be used"):
        Server(server.service, host=host, port=0, key="k")


@pytest.mark.slow
def test_a_model_whose_numbers_overflow_is_no_fault_of_the_client(tmp_path: Path) -> None:
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    tensors["output_norm.weight"][2][0] = np.nan
    path = tmp_path / "m.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    with served(LanguageModel(path, cache="off", threads=1)) as server:
        for where, said in (("completions", {"prompt": "hello"}), ("embeddings", {"input": "hello"})):
            status, found, _ = call(server, f"/v1/{where}", said)
            assert status == 500 and "numbers" in found["error"]["message"]
        assert call(server, "/health")[0] == 200
