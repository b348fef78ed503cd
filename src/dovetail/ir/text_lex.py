"""Words, numbers, names, sizes and types of the text form, and where in the text they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from dovetail.errors import GraphError, ParseError
from dovetail.ir import attribute
from dovetail.ir.dim import MOST_TOKENS, Size
from dovetail.ir.dtype import BY_NAME
from dovetail.ir.literal import Literal
from dovetail.ir.origin import Origin
from dovetail.ir.size_text import parse_size, split_sizes
from dovetail.ir.spell import Number, from_base64, from_numbers, unquote
from dovetail.ir.type import TensorType, TupleType, Type

# Possessive throughout: no text makes the search go back over what it has read.
_BLANK = r"(?:[ \t\r\n]++|#[^\n]*+)*+"
_SKIP = re.compile(_BLANK)
_WORD = re.compile(rf"([A-Za-z_][A-Za-z0-9_.]*+){_BLANK}")
_LOCAL = re.compile(rf"(%[A-Za-z0-9_.]++|\$[0-9]{{1,9}}+){_BLANK}")
_REFERENCE = re.compile(rf"([%A-Za-z_][A-Za-z0-9_.]*+|\$[0-9]{{1,9}}+){_BLANK}")
_STRING = re.compile(rf'("(?:[^"\\\n]++|\\.)*+"){_BLANK}')
_NUMBER = re.compile(rf"(-?[0-9]++(\.[0-9]*+)?([eE][-+]?[0-9]++)?|-inf(?![A-Za-z0-9_.])){_BLANK}")
_TENSOR = re.compile(rf"(([a-z][a-z0-9]*+)[ \t]*\[([^\[\]]*+)\]){_BLANK}")
_BRACKET = re.compile(r"[()]")
_BLANKS = " \t\r\n#"
WORDS: dict[str, bool | float] = {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}
_LONGEST_NUMBER = 64
_CHARACTERS_OF_A_TOKEN = 32


class Lexer:
    """A text and how far it has been read."""

    tokens_of_a_size = MOST_TOKENS

    def __init__(self, text: str, blobs: Sequence[Literal] = ()) -> None:
        self.text = text
        self._blobs = blobs
        self.at = 0
        self._lines, self._counted = 1, 0
        self._types: dict[str, TensorType] = {}
        self._sizes: dict[str, Size] = {}
        self.skip()

    def skip(self) -> None:
        blank = _SKIP.match(self.text, self.at)
        if blank is not None:
            self.at = blank.end()

    def fail(self, message: str, hint: str, at: int | None = None) -> NoReturn:
        """Stop here, or at an earlier place, with its line and column."""
        place = self.at if at is None else at
        start = self.text.rfind("\n", 0, place) + 1
        raise ParseError(message, line=self.text.count("\n", 0, place) + 1, column=place - start + 1, hint=hint)

    def line(self, file: str) -> Origin | None:
        """Return where the next word is in the file, or None where the file has no name. Read in order."""
        if not file:
            return None
        self._lines += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return Origin("text", f"{file}:{self._lines}")

    def expected(self, what: str, hint: str = "") -> NoReturn:
        self.fail(f"{what} was expected, and {self.here()} was found", hint or "see docs/text-form.md for the grammar")

    def here(self) -> str:
        """Return the next few characters, for messages."""
        rest = self.text[self.at : self.at + 24].split("\n")[0].strip()
        return repr(rest) if rest else "the end of the text" if self.at >= len(self.text) else "the end of the line"

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        token = pattern.match(self.text, self.at)
        if token is not None:
            self.at = token.end()
        return token

    def sees(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def take(self, mark: str) -> bool:
        """Read a mark if it is next, and return whether it is."""
        if self.text.startswith(mark, self.at):
            self.at += 1
            if self.text[self.at : self.at + 1] in _BLANKS:
                self.skip()
            return True
        return False

    def need(self, mark: str) -> None:
        if not self.take(mark):
            self.expected(f"{mark!r}")

    def word(self) -> str | None:
        token = self._match(_WORD)
        return token.group(1) if token is not None else None

    def local(self) -> str | None:
        token = self._match(_LOCAL)
        return token.group(1) if token is not None else None

    def reference(self) -> str | None:
        token = self._match(_REFERENCE)
        return token.group(1) if token is not None else None

    def string(self) -> str:
        start = self.at
        token = self._match(_STRING)
        if token is None:
            self.expected("text in quotes", "close the quotes on the same line; write a new line as \\n")
        try:
            return unquote(token.group(1))
        except GraphError as error:
            self.fail(error.message, error.hint, start)

    def name(self) -> str:
        """Read a bare name or one in quotes."""
        if self.sees('"'):
            return self.string()
        word = self.word()
        if word is None:
            self.expected("a name", "put a name with other characters in quotes")
        return word

    def number(self) -> int | float | None:
        start = self.at
        token = self._match(_NUMBER)
        if token is None:
            return None
        text = token.group(1)
        if len(text) > _LONGEST_NUMBER:
            self.fail(f"a number of {len(text)} characters", "write fewer digits", start)
        if "i" in text or token.group(2) or token.group(3):
            return float(text)
        whole = int(text)
        if abs(whole) > attribute.LARGEST_INT:
            self.fail(f"the number {text}", "whole numbers have up to 127 bits", start)
        return whole

    def sizes(self) -> list[Size]:
        """Sizes in parentheses, which hold parentheses of their own."""
        start = self.at
        self.need("(")
        depth, end = 1, self.at
        while depth:
            bracket = _BRACKET.search(self.text, end, start + self.tokens_of_a_size * _CHARACTERS_OF_A_TOKEN)
            if bracket is None:
                self.fail("sizes in parentheses that do not close", "close the parentheses", start)
            depth += 1 if bracket.group() == "(" else -1
            end = bracket.end()
        inner = self.text[self.at : end - 1]
        self.at = end
        self.skip()
        return [self.size(part, start) for part in split_sizes(inner)]

    def size(self, text: str, at: int) -> Size:
        size = self._sizes.get(text)
        if size is None:
            try:
                size = self._sizes[text] = parse_size(text, self.tokens_of_a_size)
            except GraphError as error:
                self.fail(error.message, error.hint, at)
        return size

    def tensor(self) -> TensorType:
        """Read a type such as f32[b, 384]; each spelling is parsed once."""
        start = self.at
        token = self._match(_TENSOR)
        if token is None:
            self.expected("a type", "write a dtype and sizes: f32[b, 384]")
        spelled = token.group(1)
        type = self._types.get(spelled)
        if type is None:
            dtype = BY_NAME.get(token.group(2))
            if dtype is None:
                self.fail(f"{token.group(2)[:40]!r} is not a dtype", f"use one of {', '.join(BY_NAME)}", start)
            listed = split_sizes(token.group(3))
            if len(listed) > attribute.HIGHEST_RANK:
                self.fail(f"a tensor of rank {len(listed)}", f"ranks go up to {attribute.HIGHEST_RANK}", start)
            type = TensorType(dtype, tuple([self.size(s, start) for s in listed]))
            try:
                attribute.check_type(type)
            except GraphError as error:
                self.fail(error.message, error.hint, start)
            self._types[spelled] = type
        return type

    def literal(self) -> Literal:
        """Read the type of an array, then its elements: written out, in base64, or in the file next to the text."""
        type = self.tensor()
        start = self.at
        word = self.word() if not self.sees("[") else None
        try:
            match word:
                case "blob":
                    return self._blob(type)
                case "base64":
                    return Literal(from_base64(self.string(), type))
                case _:
                    self.at = start
                    return Literal(from_numbers([self._element()] if type.rank == 0 else self._elements(), type))
        except GraphError as error:
            self.fail(error.message, error.hint, start)

    def _blob(self, type: TensorType) -> Literal:
        index = self.number()
        if not isinstance(index, int) or not 0 <= index < len(self._blobs):
            raise GraphError(f"blob {index} of {len(self._blobs)}", hint="load the file that the text came with")
        literal = self._blobs[index]
        if TensorType(literal.dtype, literal.array.shape) != type:
            raise GraphError(f"blob {index} is {literal!r}, and the text says {type}", hint="save the graph again")
        return literal

    def _elements(self) -> list[Number]:
        self.need("[")
        elements: list[Number] = []
        while not self.take("]"):
            if elements:
                self.need(",")
            elements.append(self._element())
        return elements

    def _element(self) -> Number:
        if self.take("("):
            real = self._real()
            self.need(",")
            imaginary = self._real()
            self.need(")")
            return (float(real), float(imaginary))
        return self._real()

    def _real(self) -> bool | int | float:
        number = self.number()
        if number is not None:
            return number
        start = self.at
        word = self.word()
        if word not in WORDS:
            self.fail(f"{word!r} where a number is wanted", "write a number, inf, -inf, nan, true or false", start)
        return WORDS[word]

    def type(self) -> Type:
        """Read a tensor, or the results of an op that has several."""
        if not self.take("("):
            return self.tensor()
        items: list[TensorType] = []
        while not self.take(")"):
            if items:
                self.need(",")
            items.append(self.tensor())
        return TupleType(tuple(items))
