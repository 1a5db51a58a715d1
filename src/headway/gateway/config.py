"""The file of a gateway: its address, engines and policies, read as strictly as a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from headway.config.documents import beside, read_yaml
from headway.config.keys import INTERNAL, Bytes, Doc, Duration, PositiveSeconds, Unit, write
from headway.config.section import read
from headway.config.units import positive_duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.api_keys import Keyring
from headway.gateway.cascade.chains import Chain, read_chains
from headway.gateway.deciding.policy_versions import MOST_FAILURES
from headway.gateway.engines.engine_health import HealthSettings
from headway.gateway.engines.member import BackendSpec, check_models, read_members
from headway.gateway.handover.live_handover import HandoverSettings
from headway.gateway.live_policies import read_candidate, read_policies
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.observing.observing_settings import AdminSettings, OtelSettings, RecordSettings
from headway.gateway.observing.recent_decisions import ExplainSettings
from headway.gateway.peers import PeerSettings
from headway.gateway.prompt_tokens import TokenSettings
from headway.gateway.request_sessions import SessionSettings
from headway.gateway.settings import File, Listen
from headway.gateway.shadow.canary import CANARY, read_canary
from headway.gateway.shadow.candidate import CandidateSpec, read_shadows
from headway.gateway.signals.event_listener import EventSettings
from headway.gateway.signals.polled_signals import SignalSettings
from headway.http.wire import Limits
from headway.scenario.references import absolute
from headway.types import PS_PER_SECOND, Json

NO_ENGINE: Final = "backends: name at least one engine, as in {a: {url: http://10.0.0.7:8000}}."
SHADOW: Final = "[policies that are tried, and those that fail](shadow.md)"
KNOWN: Final = "what is known of engines and prompts; below"
OBSERVING: Final = "[observing](observing.md)"


class JournalSettings(Struct, frozen=True):
    """The section `journal:` of a gateway's file."""

    file: Annotated[File, "every input of the plane, to decide it again; may stand alone for the section"]
    limit_bytes: Annotated[Bytes, "of that file at most"] = field(default=4 * 10**9, name="limit")

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"file": data} if isinstance(data, str) else data


class Timeouts(Struct, frozen=True):
    """The section `timeouts:` of a gateway's file."""

    connect_s: Annotated[PositiveSeconds, "until an engine takes a connection"] = 3.0
    first_byte_s: Annotated[PositiveSeconds, "until the first byte of its answer"] = 600.0
    silence_s: Annotated[PositiveSeconds, "between two pieces of an answer"] = 120.0


def _read_backends(data: Any, where: str) -> dict[str, BackendSpec]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise HeadwayError(NO_ENGINE)
    members = read_members(data, where)
    check_models(members, where)
    return members


def _read_deadlines(data: Any, where: str) -> dict[str, int]:
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise HeadwayError(f"{where}: expected a mapping of names to values, got {shown(data)}.")
    return {name: positive_duration_ps(value, f"{where}.{name}") for name, value in data.items()}


def _read_policies(data: Any, where: str) -> Json:
    return read_policies({} if data is None else data)


def _unless_empty(reader: Callable[[Any, str], Json]) -> Callable[[Any, str], Json]:
    """Return a reader that takes an empty section for an empty mapping."""
    return lambda data, where: {} if data is None else reader(data, where)


class Config(Struct, frozen=True, kw_only=True):
    """A gateway's file."""

    listen: Annotated[Listen, "address and port"] = ("127.0.0.1", 8000)
    backends: Annotated[
        dict[str, BackendSpec],
        Unit("mapping", _read_backends, dict),
        Doc("names to URLs, or to mappings; below", default="required, unless `etcd` or `admin` is there"),
    ] = {}
    max_backends: Annotated[int, Meta(ge=1, le=4096), "engines at a time, those that leave included"] = 64
    policies: Annotated[
        Json,
        Unit("mapping or file", _read_policies, dict),
        Doc(
            "as in a scenario; one that asks for the truth is refused. Admission is `max-concurrency` with 1,024 "
            "requests of a model and role, unless told otherwise",
            default="the defaults",
        ),
    ] = field(default_factory=lambda: read_policies({}))
    canary: Annotated[
        Json | None, Unit("mapping", partial(read_canary, read_policies=read_candidate), dict), SHADOW
    ] = None
    shadows: Annotated[dict[str, CandidateSpec], Unit("mapping", _unless_empty(read_shadows), dict), SHADOW] = field(
        default_factory=dict, name="shadow"
    )
    policy_failures: Annotated[int, Meta(ge=1, le=10**6), SHADOW] = MOST_FAILURES
    keyring: Annotated[Keyring | None, Unit("file", Keyring.read, str), "API keys; below"] = field(
        default=None, name="keys"
    )
    deadlines: Annotated[
        dict[str, int],  # in ps
        Unit("mapping", _read_deadlines, dict),
        "by SLO class, how long a request may take in all, as in {interactive: 20s}",
    ] = {}
    patience_ps: Annotated[Duration, "how long a request waits where no engine can take it"] = 10 * PS_PER_SECOND
    timeouts: Annotated[Timeouts, "of engines; below"] = Timeouts()
    limits: Annotated[Limits, "of clients; below"] = Limits()
    retries: Annotated[
        int,
        Meta(ge=0, le=10),
        "how often another engine is tried, as long as nothing has reached the client: after a lost connection, and "
        "after 429, 502, 503 or 504",
    ] = 2
    health: Annotated[HealthSettings, "below"] = HealthSettings()
    signals: Annotated[SignalSettings, Unit("mapping or off", SignalSettings.read, write), KNOWN] = SignalSettings()
    tokens: Annotated[TokenSettings, KNOWN] = TokenSettings()
    sessions: Annotated[SessionSettings, KNOWN] = SessionSettings()
    events: Annotated[EventSettings, KNOWN] = EventSettings()
    journal: Annotated[
        JournalSettings | None,
        Doc("every input of the plane, to decide it again; `file` and `limit` (4GB)", type="file or mapping"),
    ] = None
    peers: Annotated[PeerSettings | None, "other gateways; below"] = None
    etcd: Annotated[EtcdSettings | None, "[membership](membership.md)"] = None
    admin: Annotated[AdminSettings | None, OBSERVING] = None
    explain: Annotated[ExplainSettings, Doc(OBSERVING, default="20", type="number, mapping or all")] = ExplainSettings()
    otel: Annotated[OtelSettings | None, Doc(OBSERVING, type="URL or mapping")] = None
    records: Annotated[RecordSettings | None, Doc(OBSERVING, type="folder or mapping")] = None
    chains: Annotated[dict[str, Chain], Unit("mapping", _unless_empty(read_chains), dict), "[cascades](cascade.md)"] = (
        field(default_factory=dict, name="cascade")
    )
    disaggregation: Annotated[HandoverSettings | None, "[two engines](disaggregation-live.md)"] = None
    file: Annotated[Path | None, INTERNAL] = None
    worker: Annotated[int | None, INTERNAL] = None  # its number, where it is one of several processes

    @property
    def host(self) -> str:
        return self.listen[0]

    @property
    def port(self) -> int:
        return self.listen[1]

    def validate(self, where: str) -> Config:
        if not self.backends and self.etcd is None and self.admin is None:
            raise HeadwayError(NO_ENGINE)
        if len(self.backends) > self.max_backends:
            raise HeadwayError(f"backends: there are {len(self.backends)}, and `max_backends` is {self.max_backends}.")
        return self if self.canary is None else replace(self, policies={**self.policies, CANARY: self.canary})

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Config:
        """Read a YAML file or a mapping."""
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
    config = replace(read(Config, data, ""), file=file)
    handover = config.disaggregation
    if file is None or handover is None or handover.tls is None:
        return config
    return replace(config, disaggregation=replace(handover, tls=handover.tls.beside(file.parent)))


def named_files(data: Json) -> list[tuple[Json, str]]:
    """Return where the files of candidates are named: the mapping, and the key in it."""
    canary, shadow = data.get("canary"), data.get("shadow")
    places: list[tuple[Json, str]] = [(canary, "policies")] if isinstance(canary, dict) else []
    if isinstance(shadow, dict):
        places += [(shadow, name) for name in shadow]
        places += [(candidate, "policies") for candidate in shadow.values() if isinstance(candidate, dict)]
    return [(section, key) for section, key in places if isinstance(section.get(key), str)]
