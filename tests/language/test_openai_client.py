"""The official client of OpenAI runs against the server: chats, streams, schemas, embeddings, many at once."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from dovetail.language import LanguageModel
from tests.language.test_server import MESSAGES, model, served

__all__ = ["model"]


@pytest.mark.exhaustive
def test_the_official_client(model: LanguageModel) -> None:
    openai: Any = pytest.importorskip("openai")
    with served(model, slots=4, waiting=64) as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", api_key="none", timeout=60)
        assert [m.id for m in client.models.list()] == ["tiny"]
        how: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
        whole = client.chat.completions.create(**how, logprobs=True, top_logprobs=2)
        text = whole.choices[0].message.content
        assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
        parts = list(client.chat.completions.create(**how, stream=True))
        assert "".join(p.choices[0].delta.content or "" for p in parts) == text
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        said = client.chat.completions.create(**{**how, "max_tokens": 60}, response_format=form)
        assert isinstance(json.loads(said.choices[0].message.content)["ok"], bool)
        vectors = client.embeddings.create(model="tiny", input=["hello", "world"]).data
        assert len(vectors) == 2 and len(vectors[0].embedding) == model.shape.hidden
        assert client.completions.create(model="tiny", prompt="hello", max_tokens=3, seed=1).choices[0].text is not None
        several = client.chat.completions.create(
            **{**how, "temperature": 1}, n=3, seed=1, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"9": 5}
        )
        assert [c.index for c in several.choices] == [0, 1, 2]
        echoed = client.completions.create(model="tiny", prompt="hello", max_tokens=3, echo=True, temperature=0)
        assert echoed.choices[0].text.startswith("hello")
        scored = client.completions.create(model="tiny", prompt="hello", max_tokens=0, echo=True, logprobs=1).choices[0]
        assert scored.text == "hello" and scored.logprobs.token_logprobs[0] is None
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{**how, "messages": []})
        killed = client.chat.completions.create(**{**how, "max_tokens": 400, "temperature": 1}, stream=True)
        next(iter(killed))
        killed.close()
        texts: list[str] = []

        def ask() -> None:
            texts.append(client.chat.completions.create(**how).choices[0].message.content)

        threads = [threading.Thread(target=ask) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert texts == [text] * 32
