"""TLS of clients, operators and engines: certificates, versions, names, and changes while the gateway runs."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import json
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("trustme", reason="the extra `dev` is not installed")

import trustme
from asking import ADMIN, KEY, chat, component

from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.doctor.engine_checks import ask_engines

PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
NO_CIPHER = "Cipher is (NONE)"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})


class Authority:
    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self.authority = folder, trustme.CA()
        self.file = folder / f"{name}.pem"
        self.authority.cert_pem.write_to_path(self.file)

    def issue(self, name: str = "server", host: str = "127.0.0.1", **more) -> dict[str, str]:
        """Write a certificate and its key, and return their files."""
        issued = self.authority.issue_cert(host, **more)
        files = {"certificate": self.folder / f"{name}.pem", "key": self.folder / f"{name}.key"}
        files["certificate"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(files["key"])
        return {key: str(file) for key, file in files.items()}

    def trusting(self, client: dict[str, str] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.file)
        if client is not None:
            context.load_cert_chain(client["certificate"], client["key"])
        return context


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def post(port: int, context: ssl.SSLContext, body: str = BODY, **fields: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    connection.request("POST", "/v1/chat/completions", body, fields)
    return connection.getresponse()


def s_client(port: int, *options: str) -> str:
    """Return what OpenSSL's own client says about the connection."""
    if shutil.which("openssl") is None:
        pytest.skip("the command openssl is not installed")
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


def test_clients_speak_tls_and_streams_pass(live, authority):
    gateway = live(1, tls=authority.issue())
    answer = post(gateway.port, authority.trusting())
    assert answer.status == 200 and json.load(answer)["choices"][0]["message"]["content"] == "hello"
    streamed = post(gateway.port, authority.trusting(), BODY[:-1] + ', "stream": true}').read()
    assert streamed.endswith(b"data: [DONE]\n\n")
    with pytest.raises((ConnectionError, http.client.HTTPException)):  # without TLS
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        connection.request("GET", "/health")
        connection.getresponse()
    gateway.until(lambda: not gateway.app.reception.clients)
    gateway.until(gateway.idle)


def test_openssl_judges_version_name_and_date(live, authority, tmp_path, caplog):
    trust = ("-CAfile", str(authority.file), "-verify_return_error")
    good = live(1, tls={**authority.issue(), "minimum": 1.3})
    assert "Verify return code: 0 (ok)" in s_client(good.port, *trust, "-verify_ip", "127.0.0.1")
    assert NO_CIPHER in s_client(good.port, *trust, "-tls1_2")
    assert "hostname mismatch" in s_client(good.port, *trust, "-verify_hostname", "other.test")
    old = live(1, tls=authority.issue("old", not_before=PAST, not_after=PAST + datetime.timedelta(days=1)))
    assert "certificate has expired" in s_client(old.port, *trust)
    assert [record.message for record in caplog.records if "expired" in record.message] == [
        f"tls: {tmp_path / 'old.pem'} has expired, so clients refuse it; renew it"
    ]
    assert "New, TLSv1.2, Cipher is ECDHE" in s_client(old.port, "-tls1_2")
    assert NO_CIPHER in s_client(old.port, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")


def test_a_client_must_show_a_certificate_of_the_right_authority(live, authority, tmp_path):
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    gateway = live(1, tls={**authority.issue(), "client_ca": str(authority.file)})
    assert post(gateway.port, authority.trusting(authority.issue("client"))).status == 200
    expired = authority.issue("late", not_before=PAST, not_after=PAST + datetime.timedelta(days=1))
    for wrong in (None, other.issue("client"), expired):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            post(gateway.port, authority.trusting(wrong)).read()
    assert len(gateway.engines[0].bodies) == 1


def test_the_admin_api_has_certificates_of_its_own(live, authority, monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    gateway = live(1, admin={**ADMIN, "tls": authority.issue()})
    connection = http.client.HTTPSConnection(
        "127.0.0.1", component(gateway, "Admin").port, context=authority.trusting(), timeout=60
    )
    connection.request("GET", "/healthz", headers={"Authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    assert answer.status == 200 and json.load(answer)["ready"]
    engine = json.dumps({"url": "https://b", "tls": {"ca": "/etc/passwd"}})
    connection.request("PUT", "/backends/b", engine, headers={"Authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    assert answer.status == 400 and b"only the gateway's file may name certificates" in answer.read()


def rotating(live, tmp_path, text: str, loop=None):
    """Start a gateway that follows a file."""
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    gateway = live(1, **({} if loop is None else {"new_loop": loop}))

    async def start():
        from headway.gateway.app import App

        second = App(asyncio.get_running_loop(), Config.load(file))
        await second.start()
        return second

    file.write_text(text.replace("ENGINE", f"http://127.0.0.1:{gateway.engines[0].port}"))
    return gateway, gateway.call(start())


@pytest.mark.parametrize("loop", [pytest.param("asyncio", marks=pytest.mark.full), "uvloop"])
def test_certificates_change_under_load_and_no_request_fails(live, tmp_path, loop):
    new_loop = pytest.importorskip(loop).new_event_loop
    authority = Authority(tmp_path)
    first = authority.issue()
    text = "listen: 127.0.0.1:0\nbackends: {a: ENGINE}\ntls: {certificate: server.pem, key: server.key}\n"
    gateway, app = rotating(live, tmp_path, text, new_loop)
    port = app.server.sockets[0].getsockname()[1]
    statuses, failures, done = [], [], threading.Event()

    def ask():
        context, kept = authority.trusting(), None
        while not done.is_set():
            try:
                statuses.append(post(port, context).status)
                kept = kept or http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
                kept.request("POST", "/v1/chat/completions", BODY)  # on a connection from before the change
                statuses.append(kept.getresponse().read() and 200)
            except Exception as error:
                failures.append(repr(error))
                return

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = [served(port)]
    for _ in range(3):
        authority.issue()
        gateway.call(reload(app))
        assert served(port) not in seen
        seen.append(served(port))
    # a half-written pair is refused, and the old pair stays
    Path(first["key"]).write_text("nonsense")
    gateway.call(reload(app))
    count = len(statuses)
    gateway.until(lambda: len(statuses) > count + 20 or failures)
    assert served(port) == seen[-1]
    done.set()
    for thread in threads:
        thread.join()
    assert not failures and set(statuses) == {200}
    gateway.call(app.drain(0))


async def reload(app):
    app.reload()


def served(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_an_engines_certificate_must_be_of_its_authority_and_host(live, authority, tmp_path):
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    pair = authority.issue("engine", host="engine.test")
    late = authority.issue("late", host="engine.test", not_before=PAST, not_after=PAST + datetime.timedelta(days=1))
    engine, expired = live(1, tls=pair), live(1, tls=late)  # gateways with TLS, in place of engines with TLS

    def through(port: int, **tls: str):
        return live(
            0, backends={"a": {"url": f"https://127.0.0.1:{port}", "tls": tls}}, retries=0, health={"path": None}
        )

    good = {"ca": str(authority.file), "server_name": "engine.test"}
    assert chat(through(engine.port, **good)).status == 200
    for port, wrong in (
        (engine.port, {"ca": str(authority.file)}),
        (engine.port, {**good, "ca": str(other.file)}),
        (engine.port, {"server_name": "engine.test"}),
        (expired.port, good),
    ):
        answer = chat(through(port, **wrong))
        assert answer.status == 502 and "SSLCertVerificationError" in answer.said


def test_the_gateway_shows_an_engine_its_certificate(live, authority):
    pair = {**authority.issue("engine"), "client_ca": str(authority.file)}
    engine = live(1, tls=pair)
    backend = {"url": f"https://127.0.0.1:{engine.port}", "tls": {"ca": str(authority.file)}}
    without = live(0, backends={"a": backend}, retries=0, health={"path": None})
    assert chat(without).status == 502
    backend["tls"].update(authority.issue("gateway"))
    gateway = live(0, backends={"a": backend}, health={"interval": "50ms"})
    assert chat(gateway).status == 200
    checks = component(gateway, "Checks")
    gateway.until(lambda: [pulse.answered for pulse in checks.pulses.values()] == [True])
    (examined,) = asyncio.run(ask_engines(list(gateway.app.config.backends.values()), "/health"))
    assert examined.health.status == 200


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"certificate": "server.pem"}, "tls: 'key' is missing"),
        ({"certificate": "none.pem", "key": "server.key"}, r"tls\.certificate: .*none\.pem cannot be read \(No such"),
        ({"certificate": "server.pem", "key": "other.key"}, r"tls\.key: .*other\.key is not the key of"),
        ({"certificate": "server.pem", "key": "server.pem"}, r"tls\.key: .*server\.pem has no private key in PEM"),
        (
            {"certificate": "server.key", "key": "server.pem"},
            r"tls\.certificate: .*server\.key has no certificate in PEM",
        ),
        ({"certificate": "server.pem", "key": "locked.key"}, "the key must have no password"),
        (
            {"certificate": "server.pem", "key": "server.key", "minimum": 1.1},
            r"tls\.minimum: expected 1\.2 or 1\.3, got 1\.1",
        ),
        (
            {"certificate": "server.pem", "key": "server.key", "client_ca": "server.key"},
            r"client_ca: .* certificates in PEM",
        ),
    ],
)
def test_wrong_files_are_reported(authority, tmp_path, section, message):
    from cryptography.hazmat.primitives import serialization

    pair = authority.issue()
    authority.issue("other")
    key = serialization.load_pem_private_key(Path(pair["key"]).read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (tmp_path / "locked.key").write_bytes(key.private_bytes(*form))
    section = {name: str(tmp_path / value) if name != "minimum" else value for name, value in section.items()}
    with pytest.raises(HeadwayError, match=message):
        Config.load({"backends": {"a": "http://127.0.0.1:9"}, "tls": section})


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ({"url": "http://a", "tls": {}}, r"backends\.a\.tls: needs a url that begins with https"),
        ({"url": "https://a", "tls": {"certificate": "x"}}, r"backends\.a\.tls\.key: is missing; set both"),
        ({"url": "https://a", "tls": {"ca": "/no/such"}}, r"backends\.a\.tls\.ca: /no/such cannot be read"),
    ],
)
def test_a_wrong_section_of_a_backend_is_reported(backend, message):
    with pytest.raises(HeadwayError, match=message):
        Config.load({"backends": {"a": backend}})
