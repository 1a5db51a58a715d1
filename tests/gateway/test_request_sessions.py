"""The session of a request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from drawing import draws
from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.request_sessions import SessionSettings, of_messages

SYSTEM = {"role": "system", "content": 'Say "user" and {"role": "user"} to nobody. \\'}
FIRST = {"role": "user", "content": 'What is a "quine"? }]},{ \\" \\\\'}


def encode(*messages, compact=False):
    return json.dumps(list(messages), separators=(",", ":") if compact else None).encode()


def turns(system, first, answers):
    """Return the messages of each turn of a conversation."""
    messages = [*system, first]
    yield list(messages)
    for number, answer in enumerate(answers):
        messages += [answer, {"role": "user", "content": f"and then {number}?"}]
        yield list(messages)


def test_all_turns_of_a_conversation_have_one_session():
    # OpenAI's own client writes an answer's content before its role.
    answers = [{"content": "A program }", "refusal": None, "role": "assistant"}, {"role": "assistant", "content": "x"}]
    for compact in (False, True):
        sessions = {of_messages(encode(*turn, compact=compact)) for turn in turns([SYSTEM], FIRST, answers)}
        assert len(sessions) == 1
        assert None not in sessions


@pytest.mark.parametrize(
    "first",
    [
        {"role": "user", "content": "hello"},
        {"content": "hello", "role": "user"},
        {"content": "hello", "role": "user", "name": "bob"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look [here]"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "user", "content": "", "name": None},
        {"role": "user", "content": 'print("a", "b") ' * 200},
        {"role": "user", "content": "a\\" * 5000},
    ],
)
def test_the_first_message_may_have_any_form(first):
    answers = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": '{"role":"user"}'}}]}]
    sessions = [of_messages(encode(*turn)) for turn in turns([SYSTEM], first, answers)]
    assert sessions[0] == sessions[1] is not None
    assert of_messages(encode(SYSTEM, {**first, "content": "something else"})) != sessions[0]


def test_another_first_message_is_another_session():
    sessions = {of_messages(encode(SYSTEM, {"role": "user", "content": f"question {number}"})) for number in range(50)}
    assert len(sessions) == 50
    assert of_messages(encode(FIRST)) != of_messages(encode(SYSTEM, FIRST))


def test_tenants_do_not_share_sessions():
    assert len({of_messages(encode(FIRST), tenant) for tenant in ("", "a", "b")}) == 3


def test_a_prompt_without_a_user_message_has_no_session():
    for messages in (b"", b"null", b"[]", b'"user"', encode(SYSTEM), encode({"role": "tool", "content": "user"})):
        assert of_messages(messages) is None


def test_the_header_overrides_the_user_and_both_override_the_messages():
    settings = SessionSettings()
    messages = encode(SYSTEM, FIRST)
    assert settings.session(b"abc", "me", messages) == "abc"
    assert settings.session(None, "me", messages) == "me"
    assert settings.session(b"", "", messages) == of_messages(messages)
    assert settings.session(None, None, b"") is None
    assert SessionSettings(user=False).session(None, "me", messages) == of_messages(messages)
    assert SessionSettings(prefix=False).session(None, None, messages) is None
    assert len(settings.session(b"x" * 5000, None, messages)) == 200


def test_the_section_is_read_strictly():
    assert read(SessionSettings, {}, "sessions") == SessionSettings()
    assert read(SessionSettings, {"header": "X-Session-Id", "user": False}, "sessions").header == b"x-session-id"
    with pytest.raises(HeadwayError, match=r"sessions\.header: expected a header name such as x-headway-session"):
        read(SessionSettings, {"header": "a: b"}, "sessions")
    with pytest.raises(HeadwayError, match=r"sessions\.heder: there is no such key"):
        read(SessionSettings, {"heder": "x"}, "sessions")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(["user", "role", '"user"']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.just("role"), inner, max_size=3)
    ),
    max_leaves=8,
)


@draws(15)
@given(st.lists(JSON, max_size=2), st.text(max_size=300), st.lists(JSON, max_size=3), JSON, st.booleans())
def test_what_follows_the_first_message_does_not_matter(before, content, after, more, last):
    message = (
        {"more": more, "role": "user", "content": content} if last else {"role": "user", "content": content, "m": more}
    )
    shorter, longer = encode(*before, message), encode(*before, message, *after)
    assert of_messages(shorter) == of_messages(longer)


@given(st.binary(max_size=400), st.sampled_from([b"", b'[{"role":"user"', b'"role": "user"']))
def test_any_bytes_are_read_without_an_error(data, beginning):
    of_messages(beginning + data)
