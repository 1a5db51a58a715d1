"""The file of a gateway: where it listens, who its engines are, and the policies, as strict as a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from headway.config.documents import beside, read_yaml
from headway.config.section import read
from headway.config.units import duration_ps, size_bytes
from headway.errors import HeadwayError
from headway.gateway.api_keys import Keyring
from headway.gateway.cascade.chains import Chain, read_chains
from headway.gateway.deciding.policy_versions import MOST_FAILURES
from headway.gateway.engines.engine_health import HealthSettings
from headway.gateway.engines.member import BackendSpec, check_models, read_members
from headway.gateway.handover.live_handover import HandoverSettings
from headway.gateway.live_policies import read_candidate, read_policies
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.observing.admin_settings import AdminSettings
from headway.gateway.observing.otel_settings import OtelSettings
from headway.gateway.observing.recent_decisions import ExplainSettings
from headway.gateway.observing.record_settings import RecordSettings
from headway.gateway.peers import PeerSettings
from headway.gateway.prompt_tokens import TokenSettings
from headway.gateway.request_sessions import SessionSettings
from headway.gateway.settings import address, longer_ps, seconds
from headway.gateway.shadow.canary import CANARY, read_canary
from headway.gateway.shadow.candidate import CandidateSpec, read_shadows
from headway.gateway.signals.event_listener import EventSettings
from headway.gateway.signals.polled_signals import SignalSettings
from headway.http.wire import Limits
from headway.scenario.references import absolute
from headway.types import Json

Many = Annotated[int, Meta(ge=1, le=10**9)]


class _Keys(Struct):
    backends: Any = None
    listen: str = "127.0.0.1:8000"
    max_backends: Annotated[int, Meta(ge=1, le=4096)] = 64
    policies: Any = None
    policy_failures: Annotated[int, Meta(ge=1, le=10**6)] = MOST_FAILURES
    canary: Any = None
    shadow: Any = None
    keys: str | None = None
    deadlines: dict[str, Any] = {}
    patience: Any = "10s"
    timeouts: Any = None
    limits: Any = None
    health: Any = None
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    journal: Any = None
    peers: Any = None
    cascade: Any = None
    disaggregation: Any = None
    admin: Any = None
    explain: Any = None
    otel: Any = None
    records: Any = None
    signals: Any = None
    tokens: Any = None
    sessions: Any = None
    events: Any = None
    etcd: Any = None


class _JournalKeys(Struct):
    file: str
    limit: Any = "4GB"


class _TimeoutKeys(Struct):
    connect: Any = "3s"
    first_byte: Any = "600s"
    silence: Any = "120s"


class _LimitKeys(Struct):
    body_bytes: Many = 32 * 1024 * 1024
    head_bytes: Annotated[int, Meta(ge=256, le=2**20)] = 32 * 1024
    head: Any = "10s"
    body: Any = "60s"
    idle: Any = "75s"
    unread: Any = "60s"
    connections: Many = 16_384
    held_bytes: Many = 1 << 30


class JournalSettings(Struct, frozen=True):
    file: Path
    limit_bytes: int


class Timeouts(Struct, frozen=True):
    connect_s: float = 3.0
    first_byte_s: float = 600.0
    silence_s: float = 120.0  # between two pieces of an answer


class Config(Struct, frozen=True):
    host: str
    port: int
    max_backends: int
    backends: dict[str, BackendSpec]
    policies: Json
    keyring: Keyring | None
    deadlines: dict[str, int]  # by SLO class, in ps
    patience_ps: int  # how long a request waits for an engine to come up
    timeouts: Timeouts
    limits: Limits
    retries: int
    health: HealthSettings
    signals: SignalSettings
    tokens: TokenSettings
    sessions: SessionSettings
    events: EventSettings
    hears_events: bool  # of any engine
    journal: JournalSettings | None = None
    peers: PeerSettings | None = None
    file: Path | None = None
    worker: int | None = None  # its number, where it is one of several processes
    admin: AdminSettings | None = None
    explain: ExplainSettings = ExplainSettings()
    otel: OtelSettings | None = None
    records: RecordSettings | None = None
    chains: dict[str, Chain] = {}  # by the models that clients ask for
    disaggregation: HandoverSettings | None = None
    etcd: EtcdSettings | None = None
    policy_failures: int = MOST_FAILURES  # until policies give way to those before them
    shadows: dict[str, CandidateSpec] = {}

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Config:
        """From a YAML file or a mapping."""
        if isinstance(source, Mapping):
            return read_config(dict(source), None)
        path = Path(source).expanduser()
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise HeadwayError(f"{path}: a gateway's file is a mapping with 'backends'.")
        for key in ("policies", "keys"):
            if isinstance(data.get(key), str):
                data[key] = beside(data[key], path)
        for section, key in named_files(data):
            section[key] = beside(section[key], path)
        return read_config(absolute(data, path.parent), path)


def read_config(data: Json, file: Path | None) -> Config:
    keys = read(_Keys, data, "")
    host, port = address(keys.listen, "listen")
    timeouts, limits = (
        read(_TimeoutKeys, keys.timeouts or {}, "timeouts"),
        read(_LimitKeys, keys.limits or {}, "limits"),
    )
    backends, events = _backends(keys), EventSettings.read(keys.events, "events")
    return Config(
        host,
        port,
        keys.max_backends,
        backends,
        _policies(keys),
        None if keys.keys is None else Keyring.read(Path(keys.keys)),
        {name: longer_ps(value, f"deadlines.{name}") for name, value in keys.deadlines.items()},
        duration_ps(keys.patience, "patience"),
        Timeouts(*(seconds(getattr(timeouts, name), f"timeouts.{name}") for name in _TimeoutKeys.__struct_fields__)),
        Limits(
            head_bytes=limits.head_bytes,
            body_bytes=limits.body_bytes,
            head_s=seconds(limits.head, "limits.head"),
            body_s=seconds(limits.body, "limits.body"),
            idle_s=seconds(limits.idle, "limits.idle"),
            unread_s=seconds(limits.unread, "limits.unread"),
            connections=limits.connections,
            held_bytes=limits.held_bytes,
        ),
        keys.retries,
        HealthSettings.read(keys.health),
        SignalSettings.read(keys.signals),
        TokenSettings.read(keys.tokens),
        SessionSettings.read(keys.sessions),
        events,
        events.bind is not None or any(one.events is not None for one in backends.values()),
        None if keys.journal is None else _journal(keys.journal),
        None if keys.peers is None else PeerSettings.read(keys.peers),
        file,
        admin=None if keys.admin is None else AdminSettings.read(keys.admin),
        explain=ExplainSettings() if keys.explain is None else ExplainSettings.read(keys.explain),
        otel=None if keys.otel is None else OtelSettings.read(keys.otel),
        records=None if keys.records is None else RecordSettings.read(keys.records),
        etcd=None if keys.etcd is None else EtcdSettings.read(keys.etcd, "etcd"),
        chains={} if keys.cascade is None else read_chains(keys.cascade),
        disaggregation=None
        if keys.disaggregation is None
        else HandoverSettings.read(keys.disaggregation, file.parent if file is not None else Path()),
        policy_failures=keys.policy_failures,
        shadows={} if keys.shadow is None else read_shadows(keys.shadow),
    )


def _policies(keys: _Keys) -> Json:
    found = read_policies({} if keys.policies is None else keys.policies)
    if keys.canary is None:
        return found
    return {**found, CANARY: read_canary(keys.canary, read_candidate)}


def named_files(data: Json) -> list[tuple[Json, str]]:
    """Where bundles are named that are tried: the mapping, and the key in it."""
    canary, shadow = data.get("canary"), data.get("shadow")
    found: list[tuple[Json, str]] = [(canary, "policies")] if isinstance(canary, dict) else []
    if isinstance(shadow, dict):
        found += [(shadow, name) for name in shadow]
        found += [(one, "policies") for one in shadow.values() if isinstance(one, dict)]
    return [(section, key) for section, key in found if isinstance(section.get(key), str)]


def _backends(keys: _Keys) -> dict[str, BackendSpec]:
    elsewhere = keys.etcd is not None or keys.admin is not None
    if elsewhere and keys.backends is None:
        return {}
    if not isinstance(keys.backends, dict) or not (keys.backends or elsewhere):
        raise HeadwayError("backends: name at least one engine, as in {a: {url: http://10.0.0.7:8000}}.")
    found = read_members(keys.backends, "backends")
    check_models(found, "backends")
    if len(found) > keys.max_backends:
        raise HeadwayError(f"backends: there are {len(found)}, and `max_backends` is {keys.max_backends}.")
    return found


def _journal(given: Any) -> JournalSettings:
    keys = read(_JournalKeys, {"file": given} if isinstance(given, str) else given, "journal")
    return JournalSettings(Path(keys.file).expanduser(), size_bytes(keys.limit, "journal.limit"))
