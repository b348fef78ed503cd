"""The server: what clients send in OpenAI's form is answered as they expect, and what is wrong has a status."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dovetail.errors import OptionError, ServiceError
from dovetail.language import LanguageModel
from dovetail.language.engine import Engine
from dovetail.language.generation import Request
from dovetail.language.openai import Bounds, Service
from dovetail.language.sampling import Sampling
from dovetail.language.server import Limits, Server
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    path = tmp_path_factory.mktemp("server") / "tiny.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    return LanguageModel(path, cache="off", threads=1)


@contextmanager
def served(model: LanguageModel, *, slots: int = 3, waiting: int = 64, **how: Any) -> Generator[Server]:
    bounds: Bounds = how.pop("bounds", Bounds(longest=400))
    service = Service(model, Engine(model.programs, slots=slots, waiting=waiting), "tiny", bounds)
    server = Server(service, port=0, **how)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5.0)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(model: LanguageModel) -> Iterator[Server]:
    with served(model) as found:
        yield found


def call(
    server: Server, path: str, said: Any = None, *, raw: bytes | None = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """A status, an answer as JSON or as the data of its events, and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    body = raw if raw is not None else None if said is None else json.dumps(said).encode()
    given = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    connection.request("GET" if body is None else "POST", path, body, given)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    found = dict(answer.getheaders())
    if found.get("Content-Type") == "text/event-stream":
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        return answer.status, [json.loads(event) for event in events[:-1]], found
    return answer.status, json.loads(text) if text else None, found


MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


@pytest.mark.slow
def test_a_chat_at_once_and_streamed_is_the_same_text(server: Server) -> None:
    asked: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12, "model": "any"}
    status, whole, _ = call(server, "/v1/chat/completions", asked)
    assert status == 200 and whole["object"] == "chat.completion" and whole["model"] == "tiny"
    choice = whole["choices"][0]
    assert choice["finish_reason"] in ("stop", "length") and choice["message"]["role"] == "assistant"
    assert whole["usage"]["completion_tokens"] <= 12 < whole["usage"]["prompt_tokens"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    status, parts, _ = call(server, "/v1/chat/completions", {**asked, **options})
    assert status == 200 and parts[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(p["choices"][0]["delta"].get("content", "") for p in parts if p["choices"])
    assert text == choice["message"]["content"] and parts[-1]["usage"] == whole["usage"]
    assert parts[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]


@pytest.mark.slow
def test_completions_are_those_of_the_model_alone(model: LanguageModel, server: Server) -> None:
    texts, ids = ["hello w", "he"], [5, 6, 7, 8]
    asked = {"prompt": texts, "temperature": 0, "max_tokens": 10, "logprobs": 2}
    status, found, _ = call(server, "/v1/completions", asked)
    wanted = ["".join(model.generate(p, max_tokens=10)) for p in texts]
    assert status == 200 and [c["text"] for c in found["choices"]] == wanted
    assert all(len(c["logprobs"]["top_logprobs"][0]) == 2 for c in found["choices"])
    status, found, _ = call(server, "/v1/completions", {"prompt": ids, "temperature": 0, "max_tokens": 10})
    assert status == 200 and found["choices"][0]["text"] == "".join(model.generate([5, 6, 7, 8], max_tokens=10))


@pytest.mark.slow
def test_parallel_requests_get_what_they_get_alone(model: LanguageModel, server: Server) -> None:
    texts = [f"hello {i}{'w' * (i % 5)}" for i in range(12)]
    wanted = {t: "".join(model.generate(t, max_tokens=8, sampling=Sampling(0.9, seed=7))) for t in texts}
    found: dict[str, str] = {}

    def ask(text: str) -> None:
        asked = {"prompt": text, "max_tokens": 8, "temperature": 0.9, "seed": 7}
        found[text] = call(server, "/v1/completions", asked)[1]["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == wanted


def test_an_answer_of_a_schema_satisfies_it(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["n"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    status, found, _ = call(
        server, "/v1/chat/completions", {"messages": MESSAGES, "response_format": form, "max_tokens": 60, "seed": 1}
    )
    assert status == 200 and 1 <= json.loads(found["choices"][0]["message"]["content"])["n"] <= 99


@pytest.mark.slow
def test_embeddings_as_numbers_and_as_bytes(model: LanguageModel, server: Server) -> None:
    status, found, _ = call(server, "/v1/embeddings", {"input": ["hello", [9, 8, 7]], "model": "tiny"})
    assert status == 200 and found["usage"]["total_tokens"] == 4
    np.testing.assert_allclose(found["data"][1]["embedding"], model.embed([9, 8, 7]), atol=1e-7)
    _, packed, _ = call(server, "/v1/embeddings", {"input": "hello", "encoding_format": "base64"})
    numbers = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(numbers, found["data"][0]["embedding"], atol=1e-7)


def test_models_and_health(server: Server) -> None:
    assert call(server, "/v1/models")[1]["data"][0]["id"] == "tiny"
    assert call(server, "/v1/models/tiny")[0] == 200 and call(server, "/v1/models/other")[0] == 404
    assert call(server, "/health")[1]["status"] == "ok" and call(server, "/nowhere", {})[0] == 404


BAD: dict[str, tuple[int, str, Any]] = {
    "no object": (400, "/v1/chat/completions", [1]),
    "no messages": (400, "/v1/chat/completions", {"messages": []}),
    "an image": (400, "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    "an odd role": (400, "/v1/chat/completions", {"messages": [{"role": "god", "content": "x"}]}),
    "an unknown field": (400, "/v1/chat/completions", {"messages": MESSAGES, "temprature": 0.5}),
    "no choices": (400, "/v1/chat/completions", {"messages": MESSAGES, "n": 0}),
    "too many choices": (400, "/v1/completions", {"prompt": "a", "n": 10**9}),
    "more choices than may wait": (400, "/v1/completions", {"prompt": ["a", "b"], "n": 40}),
    "the best of more choices": (400, "/v1/completions", {"prompt": "a", "n": 1, "best_of": 2}),
    "a penalty that is no number": (400, "/v1/completions", {"prompt": "a", "presence_penalty": "x"}),
    "a penalty beyond floats": (400, "/v1/completions", {"prompt": "a", "frequency_penalty": 10**400}),
    "a bias of a word": (400, "/v1/completions", {"prompt": "a", "logit_bias": {"the": 1}}),
    "a bias of no token": (400, "/v1/completions", {"prompt": "a", "logit_bias": {"99999": 1}}),
    "a bias that is a list": (400, "/v1/completions", {"prompt": "a", "logit_bias": [1]}),
    "a bias that is no number": (400, "/v1/completions", {"prompt": "a", "logit_bias": {"1": [1]}}),
    "nothing after a prompt": (400, "/v1/completions", {"prompt": "a", "max_tokens": 0}),
    "an echo of fewer tokens than none": (400, "/v1/completions", {"prompt": "a", "max_tokens": -1, "echo": True}),
    "a temperature below 0": (400, "/v1/chat/completions", {"messages": MESSAGES, "temperature": -1}),
    "tokens that are text": (400, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": "9"}),
    "no tokens": (400, "/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 0, "max_tokens": 4}),
    "a temperature beyond floats": (400, "/v1/chat/completions", {"messages": MESSAGES, "temperature": 10**400}),
    "calls of tools": (
        400,
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
    ),
    "tools": (400, "/v1/chat/completions", {"messages": MESSAGES, "tools": [{"type": "function"}]}),
    "tools to choose": (400, "/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "required"}),
    "more texts than may wait": (400, "/v1/completions", {"prompt": ["a"] * 80, "max_tokens": 1}),
    "half a pair of surrogates": (400, "/v1/completions", {"\ud800": 1}),
    "no schema": (
        400,
        "/v1/chat/completions",
        {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": {"schema": None}}},
    ),
    "an odd stop": (400, "/v1/chat/completions", {"messages": MESSAGES, "stop": [1]}),
    "an empty prompt": (400, "/v1/completions", {"prompt": ""}),
    "a token that is none": (400, "/v1/completions", {"prompt": [10**9]}),
    "a prompt beyond the context": (400, "/v1/completions", {"prompt": [1] * 600}),
    "no input": (400, "/v1/embeddings", {"input": []}),
    "odd dimensions": (400, "/v1/embeddings", {"input": "x", "dimensions": 3}),
    "a schema that cannot be met": (
        400,
        "/v1/chat/completions",
        {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": []}}}},
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_has_a_status_and_words(server: Server, case: str) -> None:
    wanted, path, said = BAD[case]
    status, found, _ = call(server, path, said)
    assert status == wanted and found["error"]["message"]


def test_bodies_that_are_no_requests(server: Server) -> None:
    path = "/v1/completions"
    assert call(server, path, raw=b"{")[0] == 400
    assert call(server, path, raw=b"[" * 100_000)[0] == 400
    assert call(server, path, {}, Content_Type="text/plain")[0] == 415
    assert call(server, path, {}, Content_Length="x")[0] in (400, 411)
    assert call(server, path, {}, Host="evil.example")[0] == 403, "a page of another site"


def test_fields_that_only_label_a_request_or_change_nothing_are_taken(server: Server) -> None:
    labels: dict[str, Any] = {
        "user": "x",
        "metadata": {},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "x",
    }
    same: dict[str, Any] = {
        "n": 1,
        "logit_bias": {},
        "presence_penalty": 0,
        "modalities": ["text"],
        "tool_choice": "none",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "functions": [],
    }
    options = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    asked = {"messages": MESSAGES, "max_tokens": 2, **labels, **same, **options}
    status, events, _ = call(server, "/v1/chat/completions", asked)
    assert status == 200 and events[-1]["usage"]["completion_tokens"] <= 2


def test_a_name_with_spaces_is_found(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.service, "name", "my model")
    assert call(server, "/v1/models/my%20model")[1]["id"] == "my model"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(model: LanguageModel) -> None:
    with served(model, limits=Limits(body=1000)) as server:
        assert call(server, "/v1/completions", {"prompt": "x" * 2000})[0] == 413
        assert call(server, "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200


def test_a_key_is_needed_where_there_is_one(model: LanguageModel) -> None:
    with served(model, key="secret") as server:
        assert call(server, "/v1/models")[0] == 401
        assert call(server, "/v1/models", Authorization="Bearer other")[0] == 401
        assert call(server, "/v1/models", Authorization="Bearer secret")[0] == 200
    service = Service(model, Engine(model.programs), "tiny")
    with pytest.raises(OptionError, match="key"):
        Server(service, host="0.0.0.0", port=0)
    service.engine.close()


@pytest.mark.slow
def test_a_full_queue_says_so_and_the_others_are_served(model: LanguageModel) -> None:
    with served(model, slots=1, waiting=1) as server:
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(
                call(server, "/v1/completions", {"prompt": "hello", "max_tokens": 200, "temperature": 1})[0]
            )

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(statuses) == {200, 429} and len(statuses) == 8
        assert call(server, "/v1/completions", {"prompt": "hello", "max_tokens": 2})[0] == 200


def raw_connection(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10)


def until_idle(server: Server) -> bool:
    deadline = time.monotonic() + 20
    while server.service.engine.load() != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    return server.service.engine.load() == (0, 0)


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_hangs_up_leaves_the_batch(model: LanguageModel, streams: bool) -> None:
    with served(model, bounds=Bounds(longest=10**6, seconds=600)) as server:
        said = json.dumps({"prompt": "hello", "max_tokens": 480, "temperature": 1, "stream": streams}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(said)}"
        clients = [raw_connection(server) for _ in range(3)]
        for client in clients:
            client.sendall(head.encode() + b"\r\n\r\n" + said)
        for client in clients:
            client.close()
        assert until_idle(server)
        assert call(server, "/v1/completions", {"prompt": "hello", "max_tokens": 2})[0] == 200


@pytest.mark.slow
def test_connections_that_say_nothing_harm_no_one_and_are_closed(model: LanguageModel) -> None:
    with served(model, limits=Limits(connections=4, arrival=0.5)) as server:
        silent = [raw_connection(server) for _ in range(4)]
        silent[0].sendall(b"POST /v1/completions HTTP/1.1\r\nHost:")
        time.sleep(0.1)
        assert call(server, "/v1/models")[0] == 503, "there is no connection left"
        deadline = time.monotonic() + 10
        while call(server, "/v1/models")[0] == 503 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert call(server, "/v1/models")[0] == 200
        for client in silent:
            client.close()


def test_a_request_that_takes_too_long_ends(model: LanguageModel) -> None:
    with served(model, bounds=Bounds(seconds=0.0)) as server:
        assert call(server, "/v1/completions", {"prompt": "hello", "max_tokens": 300})[0] == 504


def test_closing_ends_requests_and_takes_no_more(model: LanguageModel) -> None:
    engine = Engine(model.programs, slots=1)
    tickets = [engine.submit(model.writer("hello", Request(400, Sampling(1.0, seed=i)))) for i in range(3)]
    engine.close()
    with pytest.raises(ServiceError) as caught:
        for ticket in tickets:
            list(ticket)
    assert caught.value.status == 503
    with pytest.raises(ServiceError):
        engine.submit(model.writer("hello", Request(1)))


def test_a_beginning_that_another_request_holds_is_not_read_again(model: LanguageModel) -> None:
    engine = Engine(model.programs, slots=2)
    prompt = [int(i) for i in np.random.default_rng(0).integers(0, 200, 60)]
    alone = list(model.tokens([*prompt, 9], max_tokens=6))
    long = engine.submit(model.writer([*prompt, 8], Request(200, Sampling(1.0))))
    assert long.next() is not None
    second = [piece.token for piece in engine.submit(model.writer([*prompt, 9], Request(6)))]
    long.cancel()
    engine.close()
    assert [token for token in second if token is not None] == alone
