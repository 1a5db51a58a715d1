"""Aliases of models, and the models that a key may use."""

from __future__ import annotations

import json

import pytest
import yaml

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import chat, fetch
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.gateway.api_keys import new_key
from headway.gateway.config import Config
from headway.gateway.model_names import replace_model

BODY = (
    b'{"x":1.10, "messages":[{"role":"user","content":"\\u00e9"}],\r\n "model" : "fast" ,"n_":12345678901234567890123}'
)
ENGINES = {"e0": {"models": ["m"]}, "e1": {"models": ["big"]}}


def ask(gateway, body, **fields):
    return fetch(f"{gateway.url}/chat/completions", body, **fields)


def keys_file(tmp_path, **entries):
    """Return a key file, and the value of the header `authorization` for each entry."""
    keys = {name: new_key() for name in entries}
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({name: {"sha256": keys[name][1], **more} for name, more in entries.items()}))
    return str(file), {name: f"Bearer {key}" for name, (key, _) in keys.items()}


def models(gateway, **fields):
    return [model["id"] for model in fetch(f"{gateway.url}/models", **fields).json()["data"]]


# --- aliases ---------------------------------------------------------------------------------------------------------


def test_an_alias_replaces_the_model_and_no_other_byte(live):
    gateway = live(2, members=ENGINES, aliases={"fast": "m"})
    assert ask(gateway, BODY).headers["x-headway-target"] == "e0"
    assert gateway.engines[0].bodies == [BODY.replace(b'"fast"', b'"m"')]
    assert models(gateway) == ["m", "big", "fast"]


def test_the_same_prompt_is_the_same_under_an_alias(live):
    gateway = live(1, aliases={"fast": "m"})
    paths = []
    gateway.app.services.on_end.append(lambda exchange, *_: paths.append(exchange.request))
    for model in ("fast", "m"):
        chat(gateway, "word " * 100, model=model)
    gateway.until(lambda: len(paths) == 2)
    assert paths[0].path == paths[1].path and [request.model for request in paths] == ["m", "m"]


def test_an_alias_may_name_a_cascade(live):
    gateway = live(2, members=ENGINES, aliases={"fast": "both"}, cascade={"chains": {"both": ["m", "big"]}})
    assert chat(gateway, model="fast").headers["x-headway-cascade"] == "2/2 big"


def test_a_field_that_occurs_twice_is_refused_under_an_alias(live):
    gateway = live(1, aliases={"fast": "m"})
    answer = ask(gateway, b'{"model":"m","messages":[{}],"model":"fast"}')
    assert (answer.status, answer.said) == (400, "invalid request: the field 'model' occurs twice. Send it once.")
    gateway.until(gateway.idle)


@pytest.mark.parametrize(
    ("aliases", "why"),
    [
        ({"a": "b", "b": "m"}, "aliases.a: 'b' is an alias too"),
        ({"a": 1}, "aliases.a: expected a name"),
        (["a"], "aliases: expected a mapping"),
        ({"both": "m"}, "aliases.both: a cascade has this name"),
    ],
)
def test_wrong_aliases_are_refused(aliases, why):
    with pytest.raises(HeadwayError, match=why):
        Config.load({"backends": {"a": "http://x:1"}, "aliases": aliases, "cascade": {"chains": {"both": ["m", "n"]}}})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=5), st.text(), st.sampled_from([None, 1]), st.booleans())
def test_whatever_else_a_body_has_stays(fields, model, indent, plain):
    body = json.dumps({**fields, "model": "fast"}, indent=indent, ensure_ascii=plain).encode("utf-8", "surrogatepass")
    changed = replace_model(body, model.encode("utf-8", "ignore").decode())
    assert json.loads(changed) == {**json.loads(body), "model": model}
    at = body.index(json.dumps({"model": "fast"}, indent=indent)[1:-1].strip().encode())
    assert changed.startswith(body[:at])


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"a"}',
        b'{"model":"a","mod\\u0065l":"b"}',
        b'{"model":"a","MODEL":"b"}',
        b'{"Mod\\u0045l":"b","model":"a"}',
        b'{"x":1,"x":23,"model":"a"}',
        b'{"x":1}',
        b"{}",
        b"{%b}" % b",".join(b'"%d":0' % number for number in range(2000)),
    ],
)
def test_an_ambiguous_body_is_not_changed(body):
    with pytest.raises(HeadwayError):
        replace_model(body, "m")


# --- models of a key -------------------------------------------------------------------------------------------------


def test_a_key_reaches_only_the_models_on_its_list(live, tmp_path):
    file, keys = keys_file(tmp_path, ann={"models": ["fast"]}, bob={})
    gateway = live(2, members=ENGINES, keys=file, aliases={"fast": "m"})
    assert chat(gateway, model="fast", authorization=keys["ann"]).status == 200
    for model in ("m", "big", "none"):
        answer = chat(gateway, model=model, authorization=keys["ann"])
        assert (answer.status, answer.said) == (403, "the API key may not use this model")
        assert answer.json()["error"]["type"] == "permission_error"
    assert chat(gateway, model="big", authorization=keys["bob"]).status == 200
    assert models(gateway, authorization=keys["ann"]) == ["fast"]
    assert models(gateway, authorization=keys["bob"]) == ["m", "big", "fast"]
    gateway.until(gateway.idle)
    assert {key.inflight for key in gateway.app.reception.keyring.keys.values()} == {0}


def test_a_request_that_names_its_model_twice_does_not_pass_the_list(live, tmp_path):
    file, keys = keys_file(tmp_path, ann={"models": ["m"]})
    gateway = live(1, keys=file)
    answer = ask(gateway, b'{"model":"big","messages":[{}],"model":"m"}', authorization=keys["ann"])
    assert answer.status == 400 and "occurs twice" in answer.said
    assert ask(gateway, b'{"messages":[{}]}', authorization=keys["ann"]).status == 403
    assert not gateway.engines[0].bodies


def test_a_changed_list_applies_to_the_next_request(live, tmp_path):
    file, keys = keys_file(tmp_path, ann={"models": ["m"]})
    gateway = live(1, keys=file)
    assert chat(gateway, authorization=keys["ann"]).status == 200
    config = Config.load({"backends": {"a": "http://x:1"}, "keys": file})
    (digest,) = config.keyring.keys
    config.keyring.keys[digest].models = frozenset({"other"})
    gateway.app.reception.keyring.renew(config.keyring)
    assert chat(gateway, authorization=keys["ann"]).status == 403
