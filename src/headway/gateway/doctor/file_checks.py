"""Checks of a gateway's file that ask no other server: exposure, keys, certificates, open files, tokenizers."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from headway.gateway.doctor.problems import SOON_DAYS, Report
from headway.http.open_files import OWN, PER_ENGINE, most_connections, most_files, raise_limit

if TYPE_CHECKING:
    from headway.gateway.config import Config

STAND_IN: Final = "not set; the doctor reads the file without it"
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of an environment variable
PRIVATE: Final = b"PRIVATE KEY-----"
CERTIFICATES: Final = ("certificate", "client_ca", "ca", "cert")  # keys of sections whose values are PEM files


@contextmanager
def stand_in_keys(document: Any, report: Report) -> Iterator[None]:
    """Report the environment variables that the file names and that are not set. In this context they have a value, so
    that the rest of the file can be read and checked."""
    missing = {place: name for place, name in _variables(document, "") if not os.environ.get(name, "").strip()}
    for place, name in missing.items():
        remedy = "Set it to the key, in the environment of the gateway and of this command."
        report.error(place, f"The environment variable {name} is not set.", remedy)
    os.environ.update(dict.fromkeys(missing.values(), STAND_IN))
    try:
        yield
    finally:
        for name in missing.values():
            os.environ.pop(name, None)


def _variables(section: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(section, dict):
        for key, value in section.items():
            place = f"{where}.{key}".lstrip(".")
            if str(key).endswith("_env") and isinstance(value, str) and NAME.fullmatch(value):
                yield place, value
            else:
                yield from _variables(value, place)


def check_file(config: Config, report: Report) -> None:
    check_exposure(config, report)
    check_open_files(config, report)
    check_tokenizer(config, report)
    for where, path in certificate_files(config):
        check_certificate(where, path, report)


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a listening address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(config: Config, report: Report) -> None:
    listen = f"{config.host}:{config.port}"
    if not is_local(config.host):
        if config.keyring is None and config.jwt is None:
            remedy = "Name a file of API keys under `keys` (see `headway key`), or listen on 127.0.0.1."
            report.warn("keys", f"Every client that reaches {listen} may use the engines without a key.", remedy)
        if config.tls is None:
            remedy = "Set `tls`, or put a proxy that ends TLS in front of the gateway."
            report.warn("tls", f"Keys and prompts travel to {listen} without encryption.", remedy)
        if config.probes is None:
            remedy = "Set `probes` if a load balancer or Kubernetes asks whether the gateway is ready."
            report.note("probes", "There is no port for probes of liveness and readiness.", remedy)
    admin = config.admin
    if admin is not None and not is_local(admin.listen[0]) and admin.tls is None:
        remedy = "Listen on 127.0.0.1, or set `admin.tls`."
        report.warn("admin.listen", "The admin key travels over the network without encryption.", remedy)
    if admin is None:
        remedy = "Set `admin` to see metrics, the status page and decisions, and to let the doctor ask the gateway."
        report.note("admin", "The gateway has no admin API.", remedy)


def check_open_files(config: Config, report: Report) -> None:
    raise_limit()  # as the gateway does when it starts
    files = most_files()
    if files is None:
        return
    most, wanted = most_connections(config.max_backends, files), config.limits.connections
    if most < wanted:
        needed = 2 * wanted + OWN + PER_ENGINE * config.max_backends
        what = f"{wanted:,} connections need more files than a process may open here ({files:,})."
        remedy = f"Raise the limit (ulimit -n) to {needed:,}, or set `limits.connections` to at most {most:,}."
        report.warn("limits.connections", what, remedy)


def check_tokenizer(config: Config, report: Report) -> None:
    publishers = [name for name, spec in config.backends.items() if spec.events is not None]
    tokens = config.tokens
    if (publishers or config.events.bind is not None) and tokens.path is None and not tokens.models:
        remedy = "Set `tokens: {path: FOLDER}` to the folder of the model's tokenizer, or remove `events`."
        report.error("tokens.path", "KV events name tokens, but the gateway has no tokenizer.", remedy)


def check_rights(files: Iterable[Path], report: Report) -> None:
    """Report files that every user of this machine can change, and private keys that every user can read."""
    for file in files:
        try:
            mode, private = file.stat().st_mode, PRIVATE in file.read_bytes()
        except OSError:  # the section that names it reports this
            continue
        if mode & stat.S_IWOTH:
            report.warn(str(file), "Every user of this machine can change this file.", f"Run chmod o-w {file}.")
        if private and mode & stat.S_IROTH:
            report.warn(str(file), "Every user of this machine can read this private key.", f"Run chmod o= {file}.")


# --- certificates ----------------------------------------------------------------------------------------------------


def certificate_files(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the place and the path of each PEM file of certificates that the file names."""
    sections: list[tuple[str, Any]] = [("tls", config.tls), ("etcd", config.etcd)]
    sections.append(("admin.tls", None if config.admin is None else config.admin.tls))
    sections.append(("jwt", config.jwt))
    sections.append(("disaggregation.tls", None if config.disaggregation is None else config.disaggregation.tls))
    sections += [(f"backends.{name}.tls", spec.tls) for name, spec in config.backends.items()]
    for where, section in sections:
        if isinstance(section, Struct):
            for key in CERTIFICATES:
                value = getattr(section, key, None)
                if value is not None:
                    yield f"{where}.{key}", Path(value)


def check_certificate(where: str, path: Path, report: Report) -> None:
    """Report certificates of a PEM file that have expired or expire soon."""
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it has no certificate in PEM"
        report.error(where, f"{path} cannot be read ({why}).", "Correct the path, or the rights of the file.")
        return
    now = datetime.now(UTC)
    for certificate in certificates:
        name, end = certificate.subject.rfc4514_string() or "a certificate", certificate.not_valid_after_utc
        days = (end - now).days
        if end <= now:
            report.error(where, f"{name} in {path} expired on {end:%Y-%m-%d}.", "Renew it.")
        elif certificate.not_valid_before_utc > now:
            what = f"{name} in {path} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC."
            report.error(where, what, "Check this machine's clock, or wait.")
        elif days < SOON_DAYS:
            what = f"{name} in {path} expires on {end:%Y-%m-%d}, in {days} days."
            report.warn(where, what, "Renew it. The gateway reads the new file without a restart.")
