"""Prompts as chains of block keys."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("xxhash", reason="the extras `gateway` and `tokens` are not installed")
pytest.importorskip("tokenizers", reason="the extras `gateway` and `tokens` are not installed")
pytest.importorskip("jinja2", reason="the extras `gateway` and `tokens` are not installed")
pytest.importorskip("blake3", reason="the extras `gateway` and `tokens` are not installed")

from blake3 import blake3
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from drawing import draws
from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway import prompt_tokens as module
from headway.gateway import request_body
from headway.gateway.chat_template import ChatTemplate
from headway.gateway.prompt_tokens import Hasher, Tokens, TokenSettings, digest_of
from headway.gateway.request_body import KEPT_BYTES, BlockKeys, boundaries, read_body
from headway.types import Path

TEMPLATE = """\
{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>
{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}
{{ message['content'] }}{{ eos_token }}{% endfor %}
{% if tools %}[{{ tools | tojson }}]{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
CORPUS = [
    "the quick brown fox jumps over the lazy dog and says: hello world, how are you today? 0123456789 {}[]\"'"
] * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a model's folder with a small trained tokenizer and a chat template."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def exact(folder):
    return Tokens(read(TokenSettings, {"path": str(folder)}, "tokens")).of("m")


def body(**fields):
    return read_body(json.dumps({"model": "m", **fields}).encode())


def chat(*contents, **more):
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[number % 3], "content": content} for number, content in enumerate(contents)]
    return body(messages=messages, **more)


def chain_keys(hasher, ids, model="m"):
    """Return the keys that an engine's tokens give."""
    key, keys, size = hasher.root(model), [], hasher.block_tokens
    for at in range(0, len(ids) // size * size, size):
        key = hasher.chain(key, ids[at : at + size])
        keys.append(key)
    return keys


def test_a_chat_has_the_keys_of_the_engines_tokens(folder, exact):
    path, count = exact.path(chat("be brief", "hello world, how are you today? " * 10))
    text = "<s><|system|>\nbe brief</s><|user|>\n" + "hello world, how are you today? " * 10 + "</s><|assistant|>"
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert count == len(ids)
    assert list(path.keys) == chain_keys(exact, ids)
    assert path.ends == tuple(range(16, len(ids) // 16 * 16 + 1, 16))
    assert exact.unread == 0
    assert exact.exact


def test_a_longer_conversation_begins_with_the_keys_of_the_shorter(exact):
    shorter, _ = exact.path(chat("be brief", "hello " * 60, add_generation_prompt=False))
    longer, _ = exact.path(chat("be brief", "hello " * 60, "the dog " * 60, "and then?"))
    assert len(shorter.keys) > 3
    assert longer.keys[: len(shorter.keys) - 1] == shorter.keys[:-1]


def test_tools_and_their_arguments_reach_the_template(exact):
    plain, _ = exact.path(chat("x", "hello " * 40))
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert exact.path(chat("x", "hello " * 40, tools=tools))[1] > exact.path(chat("x", "hello " * 40))[1]
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": "é"}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "go on"}]
    assert exact.template.render(messages) == '<s><|assistant|>\n{"a": "é"}</s><|user|>\ngo on</s><|assistant|>'
    assert exact.path(body(messages=messages))[1] > 0
    assert exact.unread == 0
    assert plain.keys


def test_a_prompt_may_be_text_or_tokens_or_a_list_of_them(folder, exact):
    text = "the quick brown fox " * 30
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids  # with the token that begins a text
    expected = chain_keys(exact, ids)
    for prompt, count in (
        (text, len(ids)),
        (ids, len(ids)),
        ([text, text], 2 * len(ids)),
        ([ids, [1, 2]], len(ids) + 2),
    ):
        path, tokens = exact.path(body(prompt=prompt))
        assert (list(path.keys), tokens) == (expected, count)
    assert list(exact.path(body(input=text))[0].keys) == expected
    assert list(exact.path(body(prompt=text, add_special_tokens=False))[0].keys) == chain_keys(exact, ids[1:])


def test_only_the_text_parts_of_a_message_count(exact):
    parts = [{"type": "text", "text": "hello " * 30}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    first, _ = exact.path(body(messages=[{"role": "user", "content": parts}]))
    second, _ = exact.path(body(messages=[{"role": "user", "content": "hello " * 30}]))
    assert first == second


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": 3},
        {"messages": [3]},
        {"messages": "text"},
        {"prompt": [-1, 2]},
        {"prompt": [2**40]},
        {"prompt": {"a": 1}},
        {"messages": [{"role": "user", "content": "x"}], "tools": "none", "chat_template_kwargs": 7},
    ],
)
def test_a_prompt_that_cannot_be_tokenized_is_hashed_by_bytes(folder, fields):
    hasher = Tokens(read(TokenSettings, {"path": str(folder)}, "tokens")).of("m")
    prompt = body(**fields)
    path, count = hasher.path(prompt)
    assert (path, count) == Hasher(TokenSettings()).path(prompt)
    assert hasher.unread == 1


def test_an_empty_prompt_has_no_keys(exact):
    assert exact.path(body(prompt=[])) == (Path((), ()), 1)
    assert exact.path(body(messages=[]))[0] == Path((), ())


def test_tokens_beyond_the_limit_have_no_keys(folder):
    hasher = Tokens(read(TokenSettings, {"path": str(folder), "limit": 100}, "tokens")).of("m")
    path, count = hasher.path(body(prompt=list(range(1000))))
    assert (path.ends, count) == ((16, 32, 48, 64, 80, 96), 1000)


@pytest.mark.parametrize("name", ["xxh3", "blake3"])
def test_models_and_hashes_do_not_share_keys(folder, name):
    hasher = Tokens(read(TokenSettings, {"path": str(folder), "hash": name}, "tokens")).of("m")
    other = Tokens(
        read(TokenSettings, {"path": str(folder), "hash": "blake3" if name == "xxh3" else "xxh3"}, "tokens")
    ).of("m")
    ids = list(range(64))
    assert not set(chain_keys(hasher, ids)) & set(chain_keys(hasher, ids, "other"))
    assert not set(chain_keys(hasher, ids)) & set(chain_keys(other, ids))
    assert all(0 <= key < 2**64 for key in chain_keys(hasher, ids))
    assert hasher.root("m") == other.root("m") != hasher.root("n")


def test_a_blake3_key_is_the_prefix_of_the_digest(folder):
    hasher = Hasher(read(TokenSettings, {"hash": "blake3"}, "tokens"))
    packed = b"".join(number.to_bytes(4, "little") for number in (1, 2, 70_000))
    digest = blake3(hasher.root("m").to_bytes(8, "little") + packed).digest()
    assert hasher.chain(hasher.root("m"), [1, 2, 70_000]) == int.from_bytes(digest[:8], "little")


@draws(30)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200), st.integers(0, 199))
def test_keys_differ_from_the_first_different_token_on(exact, ids, place):
    other = list(ids)
    other[place % len(ids)] ^= 1
    first, second = chain_keys(exact, ids), chain_keys(exact, other)
    same = place % len(ids) // 16
    assert first[:same] == second[:same]
    assert not set(first[same:]) & set(second[same:])


def test_hashing_by_bytes_needs_no_tokenizer():
    tokens = Tokens(TokenSettings())
    hasher = tokens.of("any")
    assert not hasher.exact
    prompt = chat("x", "hello " * 5000)
    assert not hasher.long(prompt)
    path, count = hasher.path(prompt)
    assert count == len(prompt.text) // 4
    assert path.ends[:3] == (64, 128, 192)
    assert asyncio.run(hasher.path_later(prompt)) == (path, count)
    assert path != Hasher(TokenSettings(hash="blake3")).path(prompt)[0]


@pytest.mark.parametrize("hash_name", ["xxh3", "blake3"])
def test_kept_keys_of_beginnings_are_those_that_would_be_computed(hash_name, monkeypatch):
    monkeypatch.setattr(request_body, "MOST_KEPT", 3)
    digest = digest_of(hash_name)
    rng, kept = Random(1), BlockKeys(digest)
    begins = [rng.randbytes(KEPT_BYTES) for _ in range(5)]
    for _ in range(200):
        size = rng.choice((0, 100, KEPT_BYTES - 1, KEPT_BYTES, KEPT_BYTES + 511, KEPT_BYTES + 512, 40_000))
        text = (rng.choice(begins) + rng.randbytes(40_000))[:size]
        salt = rng.randrange(2)
        assert kept.path(text, salt) == BlockKeys(digest).path(text, salt)
        key, keys = salt, []
        for begin, end in pairwise([0, *boundaries(size)]):
            keys.append(key := digest(text[begin:end], key))
        assert not keys or kept.path(text, salt).keys == tuple(keys)


def test_each_model_may_have_a_tokenizer(folder, tmp_path):
    (tmp_path / "other.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    section = {"models": {"a": str(folder), "b": {"path": str(tmp_path), "chat_template": "other.jinja"}}}
    tokens = Tokens(read(TokenSettings, section, "tokens"))
    assert tokens.of("a").exact and tokens.of("b").exact and not tokens.of("c").exact
    assert tokens.of("b").template.render([{"role": "user", "content": "just this"}]) == "just this"


def test_a_thread_gives_a_long_prompt_the_same_keys(folder):
    async def both():
        tokens = Tokens(read(TokenSettings, {"path": str(folder)}, "tokens"))
        hasher = tokens.of("m")
        prompt = chat("be brief", "hello world, how are you today? " * 4000)
        assert hasher.long(prompt) and not hasher.long(chat("x", "short"))
        later = await hasher.path_later(prompt)
        assert later == hasher.path(prompt)
        assert hasher.waiting == 0
        await tokens.stop()

    asyncio.run(both())


def test_other_code_runs_while_a_long_prompt_is_tokenized(folder, monkeypatch):
    """The tokenizer must release the GIL: otherwise at most two ticks would pass."""
    hasher = Tokens(read(TokenSettings, {"path": str(folder)}, "tokens")).of("m")
    monkeypatch.setattr(hasher, "_keys", lambda model, ids, breathe: Path((), ()))
    prompt = chat("be brief", "hello world, how are you today? " * 20_000)
    thread = threading.Thread(target=hasher.path, args=(prompt, True))
    thread.start()
    ticks = 0
    while thread.is_alive():
        ticks += 1
        time.sleep(0.001)  # a tick: it returns late if the other thread holds the GIL
    assert hasher.unread == 0
    assert ticks > 20


def test_if_too_many_prompts_wait_the_next_is_hashed_by_bytes(folder, monkeypatch):
    monkeypatch.setattr(module, "WAITING", 0)
    hasher = Tokens(read(TokenSettings, {"path": str(folder)}, "tokens")).of("m")
    prompt = chat("x", "hello " * 1000)
    assert asyncio.run(hasher.path_later(prompt)) == Hasher(TokenSettings()).path(prompt)
    assert hasher.unread == 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"hash": "md5"}, r"tokens\.hash: expected 'xxh3' or 'blake3'"),
        ({"block_tokens": 0}, r"tokens\.block_tokens: expected a whole number"),
        ({"chat_template": "x"}, r"tokens\.chat_template: also needs `path`"),
        ({"models": ["m"]}, r"tokens\.models: expected a mapping of models to tokenizers"),
        ({"models": {"m": {"pth": "x"}}}, r"tokens\.models\.m\.pth: there is no such key"),
    ],
)
def test_an_error_in_the_section_is_reported(section, message):
    with pytest.raises(HeadwayError, match=message):
        read(TokenSettings, section, "tokens")


def test_a_missing_or_wrong_file_is_reported(tmp_path, folder):
    with pytest.raises(HeadwayError, match=r"tokens\.path: .* does not exist"):
        Tokens(read(TokenSettings, {"path": str(tmp_path)}, "tokens"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(HeadwayError, match=r"tokens\.models\.m\.path: .* is not a tokenizer"):
        Tokens(read(TokenSettings, {"models": {"m": str(tmp_path)}}, "tokens"))
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(HeadwayError, match="invalid chat template"):
        Tokens(read(TokenSettings, {"path": str(tmp_path)}, "tokens"))


def test_a_template_can_use_only_its_values():
    def render(source):
        return ChatTemplate(source, {}, "x").render([{"role": "user", "content": "hi"}])

    with pytest.raises(Exception, match="unsafe"):
        render("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="no such role"):
        render("{{ raise_exception('no such role') }}")
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert render(marked) == "hi"


def test_a_template_gets_tools_and_calls_in_the_form_that_engines_give_them():
    function = {"parameters": {}, "name": "f", "strict": True, "defer_loading": None, "unknown": 1}
    tools = [{"function": function, "type": "function"}, {"type": "function", "function": {"name": "g"}}]
    rendered = json.loads(ChatTemplate("{{ tools | tojson }}", {}, "x").render([], tools))
    expected = {"name": "f", "description": None, "parameters": {}, "strict": True}
    assert [list(tool["function"].items()) for tool in rendered] == [
        list(expected.items()),
        list({"name": "g", "description": None, "parameters": None}.items()),
    ]
    assert [list(tool) for tool in rendered] == [["type", "function"]] * 2

    template = ChatTemplate(
        "{% for m in messages %}{{ m.reasoning_content }}{% if m.tool_calls is defined %}"
        "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %};{% endfor %}",
        {},
        "x",
    )
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('{"a": 1}', "", "[1]", "{", None)]
    assert template.render([{"role": "assistant", "tool_calls": calls}]) == '{"a": 1}{}{}{}{};'
    assert template.render([{"role": "assistant", "tool_calls": [], "reasoning": "so"}]) == "so;"


def test_a_model_may_have_a_separate_template_for_tools(tmp_path):
    config = {"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.find(tmp_path)
    assert (template.render([]), template.render([], [{"type": "function"}])) == ("plain", "tools")
