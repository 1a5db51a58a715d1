"""JSON web tokens of clients, as an OIDC provider issues them: signature, issuer, audience and times are checked, and
claims name the tenant and the SLO class.

The provider's keys (its JWKS) are fetched again at intervals, and soon after a token names an unknown key. While the
provider cannot be reached, the last keys stay valid.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeGuard
from urllib.parse import urlsplit

import msgspec

from headway.config.keys import Doc, Form, PositiveSeconds, Seconds, Unit
from headway.config.wording import one_line, shown
from headway.errors import HeadwayError, missing_extra
from headway.gateway.api_keys import BEARER, OTHER_HEADERS, Key
from headway.gateway.usage import Account, KeyLimits, Ledger, Refusal
from headway.http.client import HttpClient, NoAnswer, TooLong
from headway.http.event_loop import cancel
from headway.http.tls import EngineTls

if TYPE_CHECKING:
    from headway.gateway.live_clock import Clock

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # no shared secrets: the key that checks such a token can also create one
DISCOVERY: Final = "/.well-known/openid-configuration"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
FETCH_S: Final = 5.0  # time limit of one request to the provider
SOON_S: Final = 10.0  # least time between two fetches because of unknown keys
LARGEST: Final = 1 << 20  # maximum size of an answer of the provider, in bytes
MOST_CACHED: Final = 10_000  # tokens whose signature need not be checked again
MOST_TENANTS: Final = 10_000  # maximum number of tenants, to limit memory; further tenants count as "other"
LONGEST: Final = 200  # maximum length of a tenant's or class's name, in characters
NOT_YET: Final = Refusal(503, "the key that signed the token is not known yet; the gateway fetches the provider's keys")
log = logging.getLogger("headway.gateway")


def _read_texts(value: Any, where: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise HeadwayError(f"{where}: expected text or a list of texts, got {shown(value)}.")
    return tuple(texts)


Texts = Annotated[tuple[str, ...], Unit("text or list", _read_texts, list, form=Form.of(str, list[str]))]


class TokenClients(KeyLimits, kw_only=True):
    """The section `jwt:` of a gateway's file. Its limits hold for each tenant."""

    issuer: Annotated[str, "value that the claim iss of every token must have"]
    audience: Annotated[Texts, "values of which the claim aud of every token must have one"]
    jwks: Annotated[
        str | None, Doc("URL or file of the provider's keys", default="the one in the provider's OIDC configuration")
    ] = None
    algorithms: Annotated[tuple[Algorithm, ...], "algorithms of signatures that are accepted"] = ("RS256", "ES256")
    leeway_s: Annotated[Seconds, "difference of clocks that is accepted"] = 30.0
    refresh_s: Annotated[PositiveSeconds, "time between two fetches of the provider's keys"] = 300.0
    ca: Annotated[
        str | None,
        Doc("PEM file of the authorities of the provider's server", default="those of the system", type="file"),
    ] = None
    tenant_claim: Annotated[str, "claim that names the tenant; a token without it is refused"] = "sub"
    class_claim: Annotated[str | None, "claim that names the most important SLO class"] = None
    slo_class: Annotated[str, "most important SLO class of tokens without that claim"] = "standard"

    def validate(self, where: str) -> TokenClients:
        if not self.algorithms:
            raise HeadwayError(f"{where}.algorithms: name at least one algorithm, such as RS256.")
        if self.jwks is None or "://" in self.jwks:
            _check_url(self.jwks or self.issuer, f"{where}.{'issuer' if self.jwks is None else 'jwks'}")
        if self.ca is not None:
            EngineTls(ca=self.ca).context(where)
        return self


def _check_url(url: str, where: str) -> None:
    """Raise if the keys could be replaced on their way to the gateway."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise HeadwayError(f"{where}: expected a URL that begins with https, got {shown(url)}.")


class TokenKeys:
    """The provider's keys by their id (kid)."""

    def __init__(self, clock: Clock, settings: TokenClients, on_change: Callable[[], None]) -> None:
        self.clock, self.settings, self.on_change = clock, settings, on_change
        self.keys: dict[str, Any] = {}  # kid -> PyJWK; a key without an id has the id ""
        self.fetched = False  # whether keys have ever been read
        tls = None if settings.ca is None else EngineTls(ca=settings.ca).context()
        self.client = HttpClient(FETCH_S, tls=tls, redirects=False)  # a redirect could lead to a URL without TLS
        self._document: bytes | None = None
        self._wanted = asyncio.Event()
        self._asked = float("-inf")  # time of the last fetch because of an unknown key
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._fetch()
        self._task = self.clock.create_task(self._run())

    async def stop(self) -> None:
        await cancel(self._task)
        await self.client.close()

    def refresh(self) -> None:
        """Fetch the keys soon, because a file may have changed."""
        self._wanted.set()

    def want(self) -> bool:
        """Fetch the keys soon, because a token names an unknown one. Return False if that has just been done."""
        now = self.clock.seconds()
        if not self._wanted.is_set():
            if now - self._asked < SOON_S:
                return False
            self._asked = now
            self._wanted.set()
        return True

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                seconds = self.settings.refresh_s if self.fetched else min(SOON_S, self.settings.refresh_s)
                await asyncio.wait_for(self._wanted.wait(), seconds)
            await self._fetch()
            self._wanted.clear()

    async def _fetch(self) -> None:
        try:
            document = await self._read()
            if document != self._document:
                self.keys = read_keys(document, self.settings.algorithms)
                self._document, self.fetched = document, True
                log.info("jwt: the provider has %d keys", len(self.keys))
                self.on_change()
        except (HeadwayError, NoAnswer, TooLong, OSError, ValueError) as error:
            log.warning("jwt: the provider's keys cannot be read, and the last ones stay: %s", one_line(error))
        except Exception:  # a bug must not end the refreshes
            log.exception("jwt: the provider's keys cannot be read")

    async def _read(self) -> bytes:
        place = self.settings.jwks
        if place is None:
            found = msgspec.json.decode(await self._get(self.settings.issuer.rstrip("/") + DISCOVERY))
            place = found.get("jwks_uri") if isinstance(found, dict) else None
            if not isinstance(place, str):
                raise HeadwayError("the provider's OIDC configuration has no jwks_uri")
            _check_url(place, "jwks_uri")
        elif "://" not in place:
            return await asyncio.to_thread(Path(place).read_bytes)
        return await self._get(place)

    async def _get(self, url: str) -> bytes:
        answer = await self.client.get(url, most_bytes=LARGEST)
        if answer.status != 200:
            raise HeadwayError(f"{url}: status {answer.status}")
        return answer.body


def read_keys(document: bytes, algorithms: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a JWKS that can have signed a token. Others are ignored, as the standard asks."""
    jwt = load_jwt()
    found = msgspec.json.decode(document)
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise HeadwayError("the JWKS has no list `keys`")
    keys: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        with suppress(jwt.PyJWTError, ValueError, TypeError, KeyError):
            key = jwt.PyJWK(entry)
            if "alg" not in entry or entry["alg"] in algorithms:
                keys[str(entry.get("kid", ""))] = key
    return keys


class WebTokens:
    """Finds the client of a request by its token."""

    def __init__(self, clock: Clock, settings: TokenClients, ledger: Ledger) -> None:
        self.settings, self.ledger, self.jwt = settings, ledger, load_jwt()
        self.provider = TokenKeys(clock, settings, lambda: self.cache.clear())
        self.cache: dict[bytes, tuple[Key, float]] = {}  # hash of a valid token -> its key, and when it expires
        self.tenants: dict[str, None] = {}
        self.limited = any(limit is not None for limit in (settings.rate, settings.token_rate, settings.concurrency))
        self.start, self.stop = self.provider.start, self.provider.stop

    def owner(self, fields: Mapping[bytes, bytes]) -> Key | Refusal | None:
        """Return the client of the request's token; None if it has no token; otherwise the reason of a refusal."""
        answer: Refusal | None = None
        for token in _tokens(fields):
            digest = hashlib.sha256(token).digest()
            cached = self.cache.get(digest)
            if cached is not None and time.time() < cached[1]:
                return cached[0]
            checked = self._check(token, digest)
            if isinstance(checked, Key):
                return checked
            answer = answer or checked
        return answer

    def _check(self, token: bytes, digest: bytes) -> Key | Refusal:
        jwt, settings = self.jwt, self.settings
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in settings.algorithms or "crit" in header:
                return _refused("its algorithm is not accepted")
            key = self._key(header)
            if key is None:
                wanted = self.provider.want()
                return NOT_YET if wanted or not self.provider.fetched else _refused("an unknown key has signed it")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[header["alg"]],
                audience=list(settings.audience),
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            return _refused("it has expired")
        except jwt.InvalidAudienceError:
            return _refused("it is for another audience")
        except jwt.InvalidIssuerError:
            return _refused("another issuer has issued it")
        except Exception:  # libraries raise many errors on what strangers send; all of them mean no
            return _refused("it is not valid")
        client = self._client(claims)
        if isinstance(client, Key):
            if len(self.cache) >= MOST_CACHED:
                del self.cache[next(iter(self.cache))]
            self.cache[digest] = client, int(claims["exp"]) + settings.leeway_s
        return client

    def _key(self, header: Mapping[str, Any]) -> Any:
        """Return the key that a token's header names. Without a name, return the provider's only key."""
        keys, kid = self.provider.keys, header.get("kid")
        return next(iter(keys.values())) if kid is None and len(keys) == 1 else keys.get(kid or "")

    def _client(self, claims: Mapping[str, Any]) -> Key | Refusal:
        settings = self.settings
        name = claims.get(settings.tenant_claim)
        if not _is_name(name):
            return _refused(f"its claim {settings.tenant_claim} names no tenant")
        slo_class = claims.get(settings.class_claim, settings.slo_class) if settings.class_claim else settings.slo_class
        if not _is_name(slo_class):
            return _refused(f"its claim {settings.class_claim} names no class")
        tenant = name if name in self.tenants or len(self.tenants) < MOST_TENANTS else "other"
        self.tenants[tenant] = None
        if not self.limited:
            return Key(name, tenant, slo_class, None, Account(settings))
        account = self.ledger.account(hashlib.sha256(f"jwt {settings.issuer} {tenant}".encode()).digest(), settings)
        return Key(name, tenant, slo_class, None, account)


def _tokens(fields: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Yield what looks like a token in the headers for keys."""
    bearer = fields.get(b"authorization", b"")
    secrets = [bearer[7:]] if bearer[:7].lower() == BEARER else []
    for secret in (*secrets, *(fields[name] for name in OTHER_HEADERS if name in fields)):
        if secret.count(b".") == 2:
            yield secret.strip()


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable()


def _refused(why: str) -> Refusal:
    return Refusal(401, f"the token is refused: {why}")


def load_jwt() -> Any:
    try:
        import cryptography  # noqa: F401  PyJWT needs it for signatures with public keys
        import jwt
    except ImportError:
        raise missing_extra("jwt", "pyjwt", "gateway") from None
    return jwt
