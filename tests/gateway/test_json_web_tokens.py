"""JSON web tokens of clients: what is accepted, what is refused, and the keys of the provider."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("cryptography", reason="the extra `gateway` is not installed")
pytest.importorskip("jwt", reason="the extra `gateway` is not installed")

import jwt
from asking import Answer, chat, fetch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from headway.errors import HeadwayError
from headway.gateway.api_keys import new_key
from headway.gateway.config import Config
from headway.gateway.json_web_tokens import read_keys

ISSUER = "https://login.test/"
KEYS = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in ("one", "two")}


class Provider:
    """Issues tokens, and serves its keys over HTTP."""

    def __init__(self) -> None:
        self.names, self.status, self.asked = ["one"], 200, 0
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                found = {"jwks_uri": f"{provider.url}/keys"} if "openid" in self.path else provider.jwks()
                self.send_response(provider.status)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *arguments: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def jwks(self) -> dict[str, Any]:
        public = {name: RSAAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True) for name in self.names}
        return {"keys": [{**key, "kid": name, "use": "sig", "alg": "RS256"} for name, key in public.items()]}


@pytest.fixture
def provider():
    started = Provider()
    yield started
    started.server.shutdown()
    started.server.server_close()


def token(kid: str | None = "one", algorithm: str = "RS256", key: Any = None, **claims: Any) -> str:
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "headway", "sub": "ann", "exp": now + 600, "iat": now, **claims}
    claims = {name: value for name, value in claims.items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims, KEYS[kid or "one"] if key is None else key, algorithm=algorithm, headers=headers)


def section(provider: Provider, **more: Any) -> dict[str, Any]:
    return {"issuer": ISSUER, "audience": "headway", "jwks": provider.url, "refresh": "1h", **more}


def ask(gateway, text: str, **more: Any) -> Answer:
    return chat(gateway, Authorization=f"Bearer {text}", **more)


def test_a_valid_token_is_served_and_never_reaches_the_engine(live, provider):
    gateway = live(1, jwt=section(provider))
    for text in (token(), token(kid=None), token(aud=["other", "headway"])):
        assert ask(gateway, text).status == 200
    assert chat(gateway, **{"x-api-key": token()}).status == 200
    assert fetch(f"{gateway.url}/models", Authorization=f"Bearer {token()}").status == 200
    assert provider.asked == 1
    assert not any(b"authorization" in fields or b"x-api-key" in fields for fields in gateway.engines[0].fields)


def public_pem() -> bytes:
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return KEYS["one"].public_key().public_bytes(*form)


def unsigned(header: dict[str, Any]) -> str:
    claims = {"iss": ISSUER, "aud": "headway", "sub": "ann", "exp": int(time.time()) + 600}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)]
    return ".".join([*parts, ""])


def with_secret() -> str:
    """Return a token signed with the provider's public key as if it were a shared secret."""
    import hashlib
    import hmac

    start = unsigned({"alg": "HS256", "kid": "one"})[:-1]
    mac = hmac.digest(public_pem(), start.encode(), hashlib.sha256)
    return f"{start}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


REFUSED = [
    (lambda: token(exp=int(time.time()) - 60), "it has expired"),
    (lambda: token(aud="another"), "it is for another audience"),
    (lambda: token(iss="https://evil.test/"), "another issuer"),
    (lambda: token(key=KEYS["two"]), "it is not valid"),
    (lambda: unsigned({"alg": "none"}), "its algorithm is not accepted"),
    (lambda: unsigned({"alg": "RS256", "kid": "one"}), "it is not valid"),
    (with_secret, "its algorithm is not accepted"),
    (lambda: token(algorithm="PS256"), "its algorithm is not accepted"),
    (lambda: token(kid="one", algorithm="ES256", key=ec.generate_private_key(ec.SECP256R1())), "not valid"),
    (lambda: token(exp=None), "it is not valid"),
    (lambda: token(aud=None), "it is not valid"),
    (lambda: token(nbf=int(time.time()) + 600), "it is not valid"),
    (lambda: token(sub=None), "its claim sub names no tenant"),
    (lambda: token(sub="a\nb"), "its claim sub names no tenant"),
    (lambda: token(sub="x" * 201), "its claim sub names no tenant"),
    (lambda: unsigned({"alg": "RS256", "crit": ["b64"], "kid": "one"}), "it is not valid"),
    (lambda: "a.b.c", "it is not valid"),
    (lambda: base64.urlsafe_b64encode(b"[" * 15000).decode() + ".e30.e30", "it is not valid"),
    (lambda: "no-token", "the API key is missing or unknown"),
]


def test_other_tokens_are_refused(live, provider):
    gateway = live(1, jwt=section(provider))
    for make, why in REFUSED:
        answer = ask(gateway, make())
        assert answer.status == 401 and why in answer.said, (make(), why)
    assert not gateway.engines[0].bodies


def test_a_clock_may_differ_by_the_leeway(live, provider):
    gateway = live(1, jwt=section(provider))
    assert ask(gateway, token(exp=int(time.time()) - 10)).status == 200
    assert ask(gateway, token(nbf=int(time.time()) + 10)).status == 200


def test_claims_name_tenant_and_class(live, provider):
    gateway = live(1, jwt=section(provider, tenant_claim="org", class_claim="tier", slo_class="batch"))
    seen = []
    gateway.app.services.on_end.append(
        lambda exchange, *rest: seen.append((exchange.request.tenant, exchange.request.slo_class))
    )
    assert ask(gateway, token(org="acme"), **{"x-headway-tenant": "else", "x-headway-class": "realtime"}).status == 200
    assert ask(gateway, token(org="acme", tier="realtime"), **{"x-headway-class": "standard"}).status == 200
    gateway.until(lambda: seen == [("acme", "batch"), ("acme", "standard")])
    assert "its claim tier names no class" in ask(gateway, token(org="acme", tier=["realtime"])).said


def test_limits_hold_for_each_tenant(live, provider):
    gateway = live(1, jwt=section(provider, rate="1/min", burst=2))
    texts = [token(jti=str(number)) for number in range(3)]
    assert [ask(gateway, text).status for text in texts] == [200, 200, 429]
    assert ask(gateway, token(sub="bob")).status == 200


def test_keys_and_tokens_together(live, provider, tmp_path):
    key, digest = new_key()
    (tmp_path / "keys.yaml").write_text(f"ann: {{sha256: {digest}}}\n")
    gateway = live(1, jwt=section(provider), keys=str(tmp_path / "keys.yaml"))
    assert [ask(gateway, text).status for text in (key, token(), "wrong")] == [200, 200, 401]


def test_a_rotated_key_is_fetched_once_and_a_removed_one_ends(live, provider, monkeypatch):
    monkeypatch.setattr("headway.gateway.json_web_tokens.SOON_S", 3600.0)
    gateway = live(1, jwt=section(provider))
    assert ask(gateway, token()).status == 200
    provider.names = ["two"]
    early = ask(gateway, token("two"))
    assert early.status == 503 and early.headers["retry-after"] == "1"
    gateway.until(lambda: "two" in gateway.app.web_tokens.provider.keys)
    assert ask(gateway, token("two")).status == 200
    assert ask(gateway, token()).status == 401  # was valid and in the cache
    asked = provider.asked
    KEYS["three"] = KEYS["one"]
    assert [ask(gateway, token("three")).status for _ in range(5)] == [401] * 5
    assert provider.asked == asked == 2


def test_while_the_provider_is_down_the_last_keys_stay(live, provider):
    gateway = live(1, jwt=section(provider, refresh="20ms"))
    assert ask(gateway, token()).status == 200
    provider.status = 500
    before = provider.asked
    gateway.until(lambda: provider.asked > before + 3)
    assert ask(gateway, token(jti="a new one")).status == 200
    provider.status, provider.names = 200, []
    gateway.until(lambda: not gateway.app.web_tokens.provider.keys)
    assert ask(gateway, token()).status in (401, 503)


def test_without_any_key_a_token_waits(live, provider):
    provider.status = 503
    gateway = live(1, jwt=section(provider))
    assert [ask(gateway, token()).status for _ in range(3)] == [503] * 3
    assert ask(gateway, "no-token").status == 401


def test_the_configuration_of_oidc_names_the_keys(live, provider):
    gateway = live(1, jwt={"issuer": provider.url, "audience": "headway"})
    assert ask(gateway, token(iss=provider.url)).status == 200
    assert provider.asked == 2


def test_a_file_of_keys_and_an_expired_token_in_the_cache(live, provider, tmp_path):
    (tmp_path / "jwks.json").write_text(json.dumps(provider.jwks()))
    gateway = live(1, jwt=section(provider, jwks=str(tmp_path / "jwks.json"), leeway="0s"))
    text = token()
    assert [ask(gateway, text).status for _ in range(2)] == [200, 200] and provider.asked == 0
    tokens = gateway.app.web_tokens
    ((digest, (client, end)),) = tokens.cache.items()
    assert 0 < end - time.time() <= 600
    tokens.provider.keys.clear()
    assert ask(gateway, text).status == 200  # from the cache
    tokens.cache[digest] = client, time.time() - 1
    assert ask(gateway, text).status == 503  # it is checked again


def test_unusable_keys_of_a_jwks_are_ignored():
    curve = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    good = RSAAlgorithm.to_jwk(KEYS["one"].public_key(), as_dict=True)
    entries = [
        {**curve, "kid": "ec"},
        {**good, "kid": "enc", "use": "enc"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "s"},
    ]
    entries += [7, {"kty": "new"}, {**good, "kid": "alg", "alg": "RS512"}, {**good, "n": "%%"}]
    assert list(read_keys(json.dumps({"keys": entries}).encode(), ("RS256", "ES256"))) == ["ec"]
    with pytest.raises(HeadwayError, match="no list `keys`"):
        read_keys(b"[]", ("RS256",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jwks": "http://login.test/keys"}, r"jwt\.jwks: expected a URL that begins with https"),
        ({"jwks": None, "issuer": "login.test"}, r"jwt\.issuer: expected a URL that begins with https"),
        ({"algorithms": ["HS256"]}, r"jwt\.algorithms: expected"),
        ({"algorithms": []}, r"jwt\.algorithms: name at least one"),
        ({"audience": []}, r"jwt\.audience: expected text or a list of texts"),
        ({"ca": "/no/such"}, r"jwt\.ca: /no/such cannot be read"),
    ],
)
def test_a_wrong_section_is_reported(provider, change, message):
    with pytest.raises(HeadwayError, match=message):
        Config.load({"backends": {"a": "http://127.0.0.1:9"}, "jwt": section(provider, **change)})
