"""OpenAI-compatible requests: chats, completions, embeddings and models, as data in and data out."""

from __future__ import annotations

import base64
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.literal import Array
from dovetail.language.engine import Engine, Ticket
from dovetail.language.generation import Piece, Request, Writer
from dovetail.language.model import LanguageModel
from dovetail.language.openai_fields import CHAT, COMPLETION, EMBEDDING, Fields
from dovetail.language.tokenizer import Stream

Json = dict[str, Any]


class Waits(Protocol):
    """How a server waits for pieces: it looks after its client meanwhile."""

    def __call__(self, ticket: Ticket) -> Iterator[Piece]: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one request may take."""

    most: int = 512
    """Tokens where a request does not say how many."""
    longest: int = 4096
    """Tokens at most."""
    seconds: float = 600.0
    embedded: int = 32_768
    """Tokens of all texts of an embedding request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client gets: one object, or a stream of them."""

    one: Json | None = None
    stream: Iterator[Json] | None = None


class Service:
    """A model behind requests of OpenAI's form."""

    def __init__(self, model: LanguageModel, engine: Engine, name: str, bounds: Bounds | None = None) -> None:
        self.model, self.engine, self.name, self.bounds = model, engine, name, bounds or Bounds()
        self._started = int(time.time())

    def models(self) -> Json:
        return {"object": "list", "data": [self.described()]}

    def described(self) -> Json:
        return {"id": self.name, "object": "model", "created": self._started, "owned_by": "dovetail"}

    def chat(self, said: Any, waits: Waits) -> Reply:
        """An answer to a conversation, or several."""
        fields = Fields(said, CHAT)
        asked = fields.request(most=self.bounds.most, longest=self.bounds.longest, logprobs=fields.chat_logprobs())
        prompt = self.model.tokenizer.encode(chat_prompt(self.model, fields.messages()), special=True)
        return self._answer(fields, self._writers([prompt], asked, fields.choices), waits, _Chat(self))

    def complete(self, said: Any, waits: Waits) -> Reply:
        """What follows one prompt or several."""
        fields = Fields(said, COMPLETION)
        logprobs = fields.integer("logprobs")
        asked = fields.request(most=16, longest=self.bounds.longest, logprobs=logprobs)
        prompts, count = fields.prompts("prompt"), fields.choices
        writers = self._writers(prompts, asked, count)
        echoed = [p for p in (prompts if fields.flag("echo") else [""] * len(prompts)) for _ in range(count)]
        return self._answer(fields, writers, waits, _Completion(self, echoed, has_logprobs=logprobs is not None))

    def _writers(self, prompts: Sequence[str | list[int]], asked: Request, count: int) -> list[Writer]:
        """The texts of some prompts, `count` after each; seeds follow each other."""
        self.engine.check_count(len(prompts) * count)
        seeds = [(asked.sampling.seed + index) % 2**64 for index in range(count)]
        first, *others = [replace(asked, sampling=replace(asked.sampling, seed=seed)) for seed in seeds]
        writers: list[Writer] = []
        for prompt in prompts:
            writer = self.model.writer(prompt, first)
            writers += [writer, *[self.model.writer(writer.tokens, other) for other in others]]
        return writers

    def embed(self, said: Any) -> Reply:
        """A vector for each of some texts."""
        fields = Fields(said, EMBEDDING)
        form = fields.said.get("encoding_format", "float")
        if form not in ("float", "base64") or fields.integer("dimensions") not in (None, self.model.shape.hidden):
            raise OptionError(
                f"encoding_format {form!r:.20} and dimensions {fields.said.get('dimensions')!r:.20}",
                hint=f"float or base64, and {self.model.shape.hidden} dimensions",
            )
        texts = [self.model.tokenizer.encode(p) if isinstance(p, str) else p for p in fields.prompts("input")]
        count = sum(map(len, texts))
        if count > self.bounds.embedded:
            raise OptionError(f"{count:,} tokens in one request", hint=f"send {self.bounds.embedded:,} at most")
        vectors = [self.model.embed(tokens) for tokens in texts]
        data = [{"object": "embedding", "index": i, "embedding": _encoded(v, str(form))} for i, v in enumerate(vectors)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return Reply({"object": "list", "data": data, "model": self.name, "usage": usage})

    def _answer(self, fields: Fields, writers: list[Writer], waits: Waits, form: _Form) -> Reply:
        # Choices of a prompt share it.
        read = sum([len(writer.tokens) for writer in writers[:: fields.choices]])
        streams = fields.flag("stream")
        wants_usage = fields.is_usage_wanted
        tickets = self.engine.submit_all(writers, seconds=self.bounds.seconds)
        if streams:
            return Reply(stream=self._streamed(tickets, read, waits, form, wants_usage))
        choices: list[Json] = []
        try:
            for index, ticket in enumerate(tickets):
                choices.append(form.whole(index, list(waits(ticket))))
        finally:
            for ticket in tickets:
                ticket.cancel()
        return Reply({**form.head(form.kind), "choices": choices, "usage": _usage(read, writers)})

    def _streamed(
        self, tickets: Sequence[Ticket], read: int, waits: Waits, form: _Form, wants_usage: bool
    ) -> Iterator[Json]:
        try:
            for index, ticket in enumerate(tickets):
                is_first = True
                for piece in waits(ticket):
                    if piece.text or piece.end or piece.logprob is not None or is_first:
                        yield {**form.head(form.part_kind), "choices": [form.part(index, piece, is_first)]}
                        is_first = False
            if wants_usage:
                writers = [ticket.writer for ticket in tickets]
                yield {**form.head(form.part_kind), "choices": [], "usage": _usage(read, writers)}
        finally:
            for ticket in tickets:
                ticket.cancel()


class _Form(ABC):
    """How pieces of a text are written."""

    kind = part_kind = ""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._id, self._created = f"{self.kind.split('.')[0]}-{uuid.uuid4().hex[:24]}", int(time.time())

    def head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self.service.name}

    @abstractmethod
    def whole(self, index: int, pieces: Sequence[Piece]) -> Json:
        """A choice with all its pieces."""

    @abstractmethod
    def part(self, index: int, piece: Piece, is_first: bool) -> Json:
        """A choice with one piece, of a stream."""

    def _name(self, token: int) -> str:
        return self.service.model.tokenizer.bytes_of(token).decode("utf-8", "replace")


class _Chat(_Form):
    kind, part_kind = "chat.completion", "chat.completion.chunk"

    def whole(self, index: int, pieces: Sequence[Piece]) -> Json:
        message = {"role": "assistant", "content": "".join(p.text for p in pieces), "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(pieces),
            "finish_reason": pieces[-1].end,
        }

    def part(self, index: int, piece: Piece, is_first: bool) -> Json:
        delta = ({"role": "assistant"} if is_first else {}) | ({"content": piece.text} if piece.text else {})
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs([piece]),
            "finish_reason": piece.end or None,
        }

    def _logprobs(self, pieces: Sequence[Piece]) -> Json | None:
        listed = [
            {**self._one(p.token, p.logprob), "top_logprobs": [self._one(t, value) for t, value in p.top]}
            for p in pieces
            if p.token is not None and p.logprob is not None
        ]
        return {"content": listed, "refusal": None} if listed else None

    def _one(self, token: int, logprob: float) -> Json:
        raw = self.service.model.tokenizer.bytes_of(token)
        return {"token": self._name(token), "logprob": logprob, "bytes": list(raw)}


class _Completion(_Form):
    kind = part_kind = "text_completion"

    def __init__(self, service: Service, echoed: Sequence[str | list[int]], *, has_logprobs: bool) -> None:
        """What comes before each choice, as text or tokens."""
        super().__init__(service)
        self._has_logprobs = has_logprobs
        tokenizer = service.model.tokenizer
        self._echoed = [said if isinstance(said, str) else tokenizer.decode(said) for said in echoed]
        self._texts = [Stream(tokenizer) for _ in echoed]
        self._offsets = [0] * len(echoed)
        """Characters of the tokens of each choice so far."""

    def whole(self, index: int, pieces: Sequence[Piece]) -> Json:
        text = self._echoed[index] + "".join(p.text for p in pieces)
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, pieces),
            "finish_reason": pieces[-1].end,
        }

    def part(self, index: int, piece: Piece, is_first: bool) -> Json:
        return {
            "index": index,
            "text": (self._echoed[index] if is_first else "") + piece.text,
            "logprobs": self._logprobs(index, [piece]),
            "finish_reason": piece.end or None,
        }

    def _logprobs(self, index: int, pieces: Sequence[Piece]) -> Json | None:
        listed = [(p.token, p.logprob, p.top) for p in pieces if p.token is not None]
        if not self._has_logprobs or not listed:
            return None
        return {
            "tokens": [self._name(token) for token, _, _ in listed],
            "token_logprobs": [value for _, value, _ in listed],
            # Nothing says how likely the first token of an echoed prompt is.
            "top_logprobs": [
                None if value is None else {self._name(t): each for t, each in top} for _, value, top in listed
            ],
            "text_offset": [self._offset(index, token) for token, _, _ in listed],
        }

    def _offset(self, index: int, token: int) -> int:
        """Where the text of the choice's next token begins; one within a character begins with it."""
        start, text = self._offsets[index], self._texts[index]
        found = start + text.cut_off(token)
        self._offsets[index] = start + len(text.add(token))
        return found


def chat_prompt(model: LanguageModel, messages: Sequence[Mapping[str, str]]) -> str:
    """The text of a conversation, up to where the answer begins: by the file's template, or ChatML without one."""
    if model.source.template is not None:
        return model.chat_prompt(messages)
    said = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join(said) + "<|im_start|>assistant\n"


def _usage(read: int, writers: Sequence[Writer]) -> Json:
    written = sum(writer.written for writer in writers)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _encoded(vector: Array, form: str) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.asarray(vector, np.float64).tolist()


__all__ = ["Bounds", "Json", "Reply", "Service", "Waits", "chat_prompt"]
