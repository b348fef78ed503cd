"""Chat templates: messages go in and a prompt comes out; a template that wants more is stopped with a typed error."""

from __future__ import annotations

import pytest

from dovetail.errors import DovetailError, LoadError, OptionError
from dovetail.language.templates import ChatTemplate, Message

pytest.importorskip("jinja2")

TALK: list[Message] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "é\n"}]

RENDERED: dict[str, tuple[str, str]] = {
    "loops": ("{% for m in messages %}[{{ loop.index }}{{ '!' if loop.last }}]{% endfor %}", "[1][2!]"),
    "json": ("{{ messages[1] | tojson }}", '{"role": "assistant", "content": "é\\n"}'),
    "controls": ("{% for m in messages %}{% break %}{% endfor %}{{ messages | length }}", "2"),
    "a namespace": ("{% set n = namespace(x=1) %}{% for m in [2] %}{% set n.x = n.x ~ m %}{% endfor %}{{ n.x }}", "12"),
    "a generation": ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
    "white space": ("{%- if add_generation_prompt %}\n  a\n{%- endif %}", "  a"),
    "methods": ("{{ messages[1]['content'].strip().replace('é', 'e') + '-'.join(['a', 'b']) }}", "ea-b"),
}  # fmt: skip


@pytest.mark.parametrize("case", RENDERED)
def test_templates_render_as_they_do_elsewhere(case: str) -> None:
    source, wanted = RENDERED[case]
    assert ChatTemplate(source).render(TALK) == wanted


HOSTILE = {
    "loops in loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "a long range": "{% for a in range(10**9) %}{% endfor %}",
    "a very long range": "{% for a in range(1000000000) %}{% endfor %}",
    "text that doubles": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "text that is added": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "text that is multiplied": "{{ 'a' * 1000000000 }}",
    "lists that are multiplied": "{{ ([0] * 3000000) | length * ([0] * 3000000000) | length }}",
    "text that is joined": "{{ (['abcdefgh' * 100000] * 100000) | join('-') }}",
    "a method that joins": "{{ '-'.join(['abcdefgh' * 100000] * 100000) }}",
    "text that is replaced": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "a width": "{{ 'a'.ljust(1000000000) }}",
    "a format": "{{ '{:1000000000}'.format(1) }}",
    "an old format": "{{ '%1000000000d' % 1 }}",
    "macros without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros that double": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "a function of the loop": "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "a filter for attributes": "{{ (messages | attr('__class__')).x }}",
    "files": "{% include '/etc/passwd' %}",
    "what is not Jinja": "{% for %}",
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "an error": "{{ messages[7].content.x }}",
    "a division by 0": "{{ 1 / 0 }}",
    "too long": "a" * (1 << 19),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", HOSTILE)
def test_templates_that_want_more_are_stopped(case: str) -> None:
    with pytest.raises(LoadError) as caught:
        ChatTemplate(HOSTILE[case]).render(TALK)
    assert caught.value.hint and len(str(caught.value)) < 1000


def test_messages_are_not_changed_by_a_template() -> None:
    with pytest.raises(LoadError):
        ChatTemplate("{{ messages.append(1) }}").render(TALK)
    assert len(TALK) == 2


def test_what_a_template_refuses_is_said() -> None:
    with pytest.raises(OptionError, match="alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(TALK)


@pytest.mark.parametrize("messages", [[], "hello", [{"role": "user"}], [{"content": "a"}], [3]])
def test_messages_have_a_role_and_a_content(messages: list[Message]) -> None:
    with pytest.raises(DovetailError) as caught:
        ChatTemplate("").render(messages)
    assert type(caught.value) is OptionError
