"""The gateway's file, and errors in it."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.http.address import Address

ONE = {"backends": {"a": {"url": "http://127.0.0.1:9101"}}}


def test_a_file_needs_only_engines(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("backends:\n  a: http://10.0.0.7:8000/base\n")
    config = Config.load(file)
    assert (config.host, config.port) == ("127.0.0.1", 8000)
    (only,) = config.backends.values()
    where = Address(only.url, "url")
    assert (only.name, where.host, where.port, where.base) == ("a", "10.0.0.7", 8000, b"/base")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backends": {}}, "backends: name at least one engine"),
        ({"backends": {"a": "ftp://x"}}, "backends.a.url: expected a URL such as"),
        ({"backends": {"a": {"url": "http://x", "modles": []}}}, "backends.a.modles: there is no such key"),
        ({"backends": {"a": {"url": "http://x", "key_env": "NOT_SET_AT_ALL"}}}, "NOT_SET_AT_ALL is not set"),
        ({"backends": {"a": {"url": "http://x", "models": ["m"]}, "b": "http://y"}}, "backends.b.models: is missing"),
        ({"listen": "8000"}, "listen: expected an address such as 127.0.0.1:8000"),
        ({"timeouts": {"connect": "0s"}}, "timeouts.connect: must be greater than zero"),
        ({"policies": {"routing": "least-loadde"}}, "policies.routing: no routing policy is called 'least-loadde'"),
        ({"policies": {"rooting": "random"}}, "policies.rooting: unknown stage"),
        ({"policies": {"routing": {"name": "weighted", "scorers": {"oracle-prefix": 1}}}}, "is an oracle policy"),
    ],
)
def test_an_error_names_the_wrong_key(changes, message):
    with pytest.raises(HeadwayError, match=message.replace(".", r"\.").replace("(", r"\(")):
        Config.load({**ONE, **changes})
