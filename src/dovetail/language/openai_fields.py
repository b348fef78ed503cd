"""Fields of OpenAI-compatible requests, each checked. One that would change the result and is not built is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, cast

from dovetail.errors import OptionError, UnsupportedError
from dovetail.language.generation import Request
from dovetail.language.grammar import Grammar
from dovetail.language.json_schema import Schema, grammar_of
from dovetail.language.sampling import Sampling

COMMON = frozenset(
    (
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "top_k",
        "min_p",
        "repetition_penalty",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "n",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
    )
)
"""Fields of chats and completions. Those that only label a request are read and have no effect."""
CHAT = COMMON | {
    "messages",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "response_format",
    "modalities",
    "tools",
    "functions",
    "tool_choice",
    "parallel_tool_calls",
}
COMPLETION = COMMON | {"prompt", "logprobs", "echo", "suffix", "best_of"}
EMBEDDING = frozenset(("model", "input", "encoding_format", "dimensions", "user"))
_UNCHANGED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "modalities": (["text"],),
    # Without tools there are none to choose or to call; of those that nothing may choose none is called.
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
"""Fields that are not built, and the values at which they change nothing."""
MOST_PROMPTS = 256
MOST_CHOICES = 128
JSON_OBJECT: Schema = {"type": "object"}


class Fields:
    """The fields of a request."""

    def __init__(self, said: Any, known: frozenset[str]) -> None:
        if not isinstance(said, dict):
            raise OptionError("a request that is no JSON object", hint="send an object")
        self.said = {str(k): v for k, v in cast(dict[Any, Any], said).items() if v is not None}
        unknown = sorted(self.said.keys() - known)
        if unknown:
            raise UnsupportedError(f"the field {unknown[0][:60]!r}", hint="it is not built; leave it out")
        if self.said.get("tool_choice") == "none":
            self.said.pop("tools", None)
        for name, same in _UNCHANGED.items():
            if name in self.said and self.said[name] not in same:
                raise UnsupportedError(f"{name} of {_shown(self.said[name])}", hint="it is not built; leave it out")

    def text(self, name: str) -> str:
        found = self.said.get(name)
        if not isinstance(found, str):
            raise OptionError(f"{name} is {_shown(found)}", hint="it is text")
        return found

    def flag(self, name: str) -> bool:
        found = self.said.get(name, False)
        if not isinstance(found, bool):
            raise OptionError(f"{name} is {_shown(found)}", hint="it is true or false")
        return found

    def integer(self, name: str, default: int | None = None) -> int | None:
        found = self.said.get(name, default)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise OptionError(f"{name} is {_shown(found)}", hint="it is an integer")
        return found

    def number(self, name: str, default: float) -> float:
        found = self.said.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > sys.float_info.max:
            raise OptionError(f"{name} is {_shown(found)}", hint="it is a finite number")
        return float(found)

    def request(self, *, most: int, longest: int, logprobs: int | None) -> Request:
        """How to generate; `most` tokens where the request does not say, and `longest` at most."""
        name = "max_completion_tokens" if "max_completion_tokens" in self.said else "max_tokens"
        count, is_echo = self.integer(name, most), self.flag("echo")
        # A prompt may be echoed, and scored, without an answer.
        least = 0 if is_echo else 1
        if count is None or count < least:
            raise OptionError(f"{name} is {count}", hint=f"it is {least} or more")
        seed = self.integer("seed")
        # Without a seed every request draws in its own way.
        drawn = int.from_bytes(os.urandom(8), "little") if seed is None else seed % 2**64
        sampling = Sampling(
            self.number("temperature", 1.0),
            self.integer("top_k", 0) or 0,
            self.number("top_p", 1.0),
            self.number("min_p", 0.0),
            self.number("repetition_penalty", 1.0),
            drawn,
            self.number("presence_penalty", 0.0),
            self.number("frequency_penalty", 0.0),
            self._bias(),
        )
        scores_prompt = is_echo and logprobs is not None
        return Request(min(count, longest), sampling, self._stops(), logprobs, self._schema(), scores_prompt)

    @property
    def choices(self) -> int:
        """How many texts follow each prompt."""
        count = self.integer("n", 1)
        if count is None or not 1 <= count <= MOST_CHOICES:
            raise OptionError(f"n is {_shown(count)}", hint=f"it is from 1 to {MOST_CHOICES}")
        if self.integer("best_of", count) != count:
            raise UnsupportedError(
                f"best_of of {_shown(self.said['best_of'])}", hint="leave it out: all n are returned"
            )
        return count

    def prompts(self, name: str) -> list[str | list[int]]:
        """One prompt or several, each text or tokens."""
        found = self.said.get(name)
        if isinstance(found, str):
            return [found]
        listed = cast(list[Any], found) if isinstance(found, list) else []
        if listed and all(_is_token(t) for t in listed):
            return [listed]
        good = [isinstance(p, str) or (isinstance(p, list) and all(map(_is_token, cast(list[Any], p)))) for p in listed]
        if not listed or not all(good) or len(listed) > MOST_PROMPTS:
            raise OptionError(
                f"{name} is {_shown(found)}", hint=f"it is text, tokens, or up to {MOST_PROMPTS} of these"
            )
        return listed

    def messages(self) -> list[dict[str, str]]:
        """The messages of a chat, each with a role and text."""
        found = self.said.get("messages")
        if not isinstance(found, list) or not found:
            raise OptionError(f"messages are {_shown(found)}", hint="they are a list of messages, one at least")
        return [_message(m) for m in cast(list[Any], found)]

    def chat_logprobs(self) -> int | None:
        top = self.integer("top_logprobs")
        if not self.flag("logprobs"):
            if top:
                raise OptionError("top_logprobs without logprobs", hint="set logprobs to true")
            return None
        return top or 0

    @property
    def is_usage_wanted(self) -> bool:
        options = self.said.get("stream_options", {})
        said = cast(dict[str, Any], options) if isinstance(options, dict) else {"": options}
        if said.keys() - {"include_usage", "include_obfuscation"} or said.get("include_obfuscation"):
            raise OptionError(f"stream_options are {_shown(options)}", hint="include_usage is the one that is built")
        return said.get("include_usage") is True

    def _stops(self) -> tuple[str, ...]:
        found = self.said.get("stop", [])
        listed = [found] if isinstance(found, str) else found
        if not isinstance(listed, list) or not all(isinstance(s, str) for s in cast(list[Any], listed)):
            raise OptionError(f"stop is {_shown(found)}", hint="it is text, or a list of texts")
        return tuple(cast(list[str], listed))

    def _bias(self) -> dict[int, float]:
        found = self.said.get("logit_bias", {})
        said = cast(dict[str, Any], found) if isinstance(found, dict) else {"": found}
        if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in said):
            raise OptionError(f"logit_bias is {_shown(found)}", hint="it has a number for each of some tokens' ids")
        numbers = Fields(said, frozenset(said))
        return {int(token): numbers.number(token, 0.0) for token in said}

    def _schema(self) -> Grammar | None:
        """The grammar of the answer; all choices share it."""
        form = self.said.get("response_format", {"type": "text"})
        kind = cast(dict[str, Any], form).get("type") if isinstance(form, dict) else None
        if kind == "text":
            return None
        if kind == "json_object":
            return grammar_of(JSON_OBJECT)
        held = cast(dict[str, Any], form).get("json_schema") if kind == "json_schema" else None
        if not isinstance(held, dict) or cast(dict[str, Any], held).get("schema") is None:
            raise OptionError(
                f"response_format is {_shown(form)}", hint="its type is text, json_object, or json_schema with a schema"
            )
        return grammar_of(cast(Schema, held["schema"]))


def _message(said: Any) -> dict[str, str]:
    held = cast(dict[str, Any], said) if isinstance(said, dict) else {}
    role, content = held.get("role"), held.get("content")
    called = next((name for name in ("tool_calls", "function_call", "audio") if held.get(name)), None)
    if called is not None:
        raise UnsupportedError(f"a message with {called}", hint="the model would not see it; send text")
    if isinstance(content, list):
        parts = [cast(dict[str, Any], p) if isinstance(p, dict) else {} for p in cast(list[Any], content)]
        if any(p.get("type") != "text" or not isinstance(p.get("text"), str) for p in parts):
            raise UnsupportedError("a part of a message that is no text", hint="send text; images are not built")
        content = "".join(p["text"] for p in parts)
    if role not in ("system", "developer", "user", "assistant") or not isinstance(content, str):
        raise OptionError(f"the message {_shown(said)}", hint="it has a role (system, user or assistant) and text")
    return {"role": "system" if role == "developer" else role, "content": content}


def _is_token(said: Any) -> bool:
    return isinstance(said, int) and not isinstance(said, bool)


def _shown(said: Any) -> str:
    return repr(said)[:60]


__all__ = ["CHAT", "COMPLETION", "EMBEDDING", "Fields"]
