"""A gateway's file: address, engines, policies and all other settings. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from headway.config.dated_defaults import CURRENT, SETS, Dated
from headway.config.documents import beside, parse_yaml, read_text
from headway.config.keys import INTERNAL, Bytes, Doc, Duration, Form, PositiveDuration, PositiveSeconds, Unit, write
from headway.config.section import find_errors, read
from headway.config.units import positive_duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.api_keys import Keyring
from headway.gateway.apis.routes import RouteSpec, read_routes
from headway.gateway.cascade.chains import CascadeKeys, Chain, read_chains
from headway.gateway.deciding.policy_versions import MOST_FAILURES
from headway.gateway.engines.engine_health import HealthSettings
from headway.gateway.engines.member import BackendSpec, read_members
from headway.gateway.handover.live_handover import HandoverSettings
from headway.gateway.json_web_tokens import TokenClients
from headway.gateway.live_policies import POLICIES_FORM, read_block, read_candidate
from headway.gateway.live_scaling import ONE_PROCESS, ScalingSettings
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.model_fallbacks import FallbackModels, read_fallbacks
from headway.gateway.model_names import read_aliases
from headway.gateway.observing.observing_settings import AdminSettings, OtelSettings, RecordSettings
from headway.gateway.observing.probes import ProbeSettings
from headway.gateway.observing.recent_decisions import ExplainSettings
from headway.gateway.peers import PeerSettings
from headway.gateway.prompt_tokens import TokenSettings
from headway.gateway.request_sessions import SessionSettings
from headway.gateway.settings import File, Listen, ShutdownSettings, Timeouts
from headway.gateway.shadow.canary import CANARY, CanaryKeys, read_canary
from headway.gateway.shadow.candidate import CandidateSpec, read_shadows
from headway.gateway.signals.event_listener import EventSettings
from headway.gateway.signals.polled_signals import SignalSettings
from headway.http.client_limits import Limits
from headway.http.open_files import SHORTAGES
from headway.http.server_log import LogSettings
from headway.http.tls import ENGINE_FILES, SERVER_FILES, ServerTls
from headway.policies.classes import CLASSES
from headway.scenario.references import absolute
from headway.types import PS_PER_SECOND, Json

NOT_A_MAPPING: Final = "{path}: expected a mapping with the settings of a gateway, such as `backends`."
SHADOW: Final = "see [Shadow policies, canaries and deployment](shadow.md)"
SECURITY: Final = "see [Security](security.md)"
OBSERVING: Final = "see [Observing the gateway](observing.md)"


class JournalSettings(Struct, frozen=True):
    """The section `journal:` of a gateway's file."""

    file: Annotated[File, "file for every input and decision of the control plane; may replace the mapping"]
    limit_bytes: Annotated[Bytes, "size at which the journal ends"] = field(default=4 * 10**9, name="limit")
    short_form: ClassVar[Any] = str  # a string alone sets `file`

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"file": data} if isinstance(data, str) else data


def _read_deadlines(data: Any, where: str) -> dict[str, int]:
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise HeadwayError(f"{where}: expected a mapping of SLO classes to durations, got {shown(data)}.")
    return {name: positive_duration_ps(value, f"{where}.{name}") for name, value in data.items()}


def _read_policies(data: Any, where: str) -> Json:
    return read_block({} if data is None else data)


def _unless_empty(reader: Callable[[Any, str], Json]) -> Callable[[Any, str], Json]:
    """Return a reader that accepts an empty section as an empty mapping."""
    return lambda data, where: {} if data is None else reader(data, where)


class Config(Struct, frozen=True, kw_only=True):
    listen: Annotated[Listen, "address and port for clients"] = ("127.0.0.1", 8000)
    tls: Annotated[ServerTls | None, f"TLS for clients; {SECURITY}"] = None
    backends: Annotated[
        dict[str, BackendSpec],
        Unit("mapping", _unless_empty(read_members), dict, form=Form.of(dict[str, BackendSpec], None)),
        Doc("engine names to URLs or mappings; see below", default="required, unless `etcd` or `admin` is set"),
    ] = {}
    max_backends: Annotated[int, Meta(ge=1, le=4096), "limit of engines, including those that drain"] = 64
    policies: Annotated[
        Json,
        Unit("mapping or file", _read_policies, dict, form=POLICIES_FORM),
        Doc(
            "policies as in a scenario, except oracle policies. The default routing is "
            f"`{SETS[CURRENT].gateway_routing}`. The default admission is `max-concurrency`: the requests in "
            "flight of each model and role are at most the sum of its engines' `max_batch_size` and `max_queue`",
            default="the defaults",
        ),
    ] = {}  # if a stage has no policy here, it gets its default policy when the gateway starts
    canary: Annotated[
        Json | None,
        Unit("mapping", partial(read_canary, read_policies=read_candidate), dict, form=Form.of(CanaryKeys)),
        f"policies that decide for a share of the traffic; {SHADOW}",
    ] = None
    shadows: Annotated[
        dict[str, CandidateSpec],
        Unit("mapping", _unless_empty(read_shadows), dict, form=Form.of(dict[str, CandidateSpec], None)),
        f"policies that the gateway asks but does not obey; {SHADOW}",
    ] = field(default_factory=dict, name="shadow")
    scaling: Annotated[
        ScalingSettings | None, "how many replicas each pool should have; see [Autoscaling](scaling.md#live)"
    ] = None
    policy_failures: Annotated[
        int, Meta(ge=1, le=10**6), f"failures after which the former policies take over; {SHADOW}"
    ] = MOST_FAILURES
    keyring: Annotated[
        Keyring | None, Unit("file", Keyring.read, str, form=Form.of(str)), "file of API keys; see below"
    ] = field(default=None, name="keys")
    jwt: Annotated[TokenClients | None, f"JSON web tokens of clients; {SECURITY}"] = None
    deadlines: Annotated[
        dict[str, int],  # SLO class -> time limit in ps
        Unit("mapping", _read_deadlines, dict, form=Form.of(dict[str, PositiveDuration])),
        "time limit of a request by SLO class, as in {interactive: 20s}",
    ] = {}
    classes: Annotated[
        tuple[str, ...],
        Doc(
            "SLO classes, from the most to the least important, for the limits of API keys", default=", ".join(CLASSES)
        ),
    ] = CLASSES
    patience_ps: Annotated[Duration, "time that a request waits while no engine can serve it"] = 10 * PS_PER_SECOND
    timeouts: Annotated[Timeouts, "timeouts of engines; see below"] = Timeouts()
    limits: Annotated[Limits, "limits of clients; see below"] = Limits()
    worker_silence_s: Annotated[
        PositiveSeconds, "time without a heartbeat after which `--workers` replaces a process"
    ] = 10.0
    shutdown: Annotated[ShutdownSettings, "how the gateway ends after SIGTERM; see below"] = ShutdownSettings()
    retries: Annotated[
        int,
        Meta(ge=0, le=10),
        "attempts on other engines after a lost connection or a status 429, 502, 503 or 504, as long as the client has "
        "received nothing",
    ] = 2
    health: Annotated[HealthSettings, "health checks and ejection of engines; see below"] = HealthSettings()
    defaults: Annotated[Dated, "set of defaults, see [defaults.md](defaults.md)"] = CURRENT
    signals: Annotated[
        SignalSettings, Unit("mapping or off", SignalSettings.read, write), "polling of engine metrics; see below"
    ] = SignalSettings()
    tokens: Annotated[TokenSettings, "tokenizers and block keys of prompts; see below"] = TokenSettings()
    sessions: Annotated[SessionSettings, "assignment of requests to sessions; see below"] = SessionSettings()
    events: Annotated[EventSettings, "KV events of engines; see below"] = EventSettings()
    journal: Annotated[
        JournalSettings | None,
        Doc("record of all inputs and decisions, for replay: `file` and `limit` (4GB)", type="file or mapping"),
    ] = None
    peers: Annotated[PeerSettings | None, "other gateways in front of the same engines; see below"] = None
    etcd: Annotated[EtcdSettings | None, "see [Membership](membership.md)"] = None
    admin: Annotated[AdminSettings | None, f"admin API; {OBSERVING}"] = None
    probes: Annotated[
        ProbeSettings | None,
        Doc("liveness and readiness without a key, on a port of their own", type="address or mapping"),
    ] = None
    explain: Annotated[
        ExplainSettings, Doc(f"decisions to explain; {OBSERVING}", default="20", type="number, mapping or all")
    ] = ExplainSettings()
    otel: Annotated[OtelSettings | None, Doc(f"OpenTelemetry spans; {OBSERVING}", type="URL or mapping")] = None
    records: Annotated[RecordSettings | None, Doc(f"records of traffic; {OBSERVING}", type="folder or mapping")] = None
    log: Annotated[LogSettings, f"format and level of the log, and the access log; {OBSERVING}"] = LogSettings()
    chains: Annotated[
        dict[str, Chain],
        Unit("mapping", _unless_empty(read_chains), dict, form=Form.of(CascadeKeys, None)),
        "see [Cascades](cascade.md)",
    ] = field(default_factory=dict, name="cascade")
    aliases: Annotated[
        dict[str, str],
        Unit("mapping", read_aliases, dict, form=Form.of(dict[str, str], None)),
        "other names of models, as in {fast: m-8b}; see [APIs and models](apis.md)",
    ] = {}
    fallbacks: Annotated[
        dict[str, FallbackModels],
        Unit("mapping", read_fallbacks, dict, form=Form.of(dict[str, FallbackModels], None)),
        "models that answer if a model cannot, as in {m-70b: [m-8b]}; see [APIs and models](apis.md#fallbacks)",
    ] = {}
    routes: Annotated[
        tuple[RouteSpec, ...],
        Unit("list of mappings", read_routes, list, form=Form.of(list[RouteSpec])),
        "further paths that pass through to engines; see [APIs and models](apis.md#routes)",
    ] = ()
    disaggregation: Annotated[
        HandoverSettings | None, "see [Prefill/decode disaggregation](disaggregation-live.md)"
    ] = None
    file: Annotated[Path | None, INTERNAL] = None
    contents: Annotated[tuple[bytes | None, ...], INTERNAL] = ()  # bytes of `file` and of the files that it names
    worker: Annotated[int | None, INTERNAL] = None  # index of this worker process; None if there is only one process

    @property
    def host(self) -> str:
        return self.listen[0]

    @property
    def port(self) -> int:
        return self.listen[1]

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    def validate(self, where: str) -> Config:
        if not self.backends and self.etcd is None and self.admin is None:
            raise HeadwayError("backends: name at least one engine, as in {a: {url: http://10.0.0.7:8000}}.")
        if len(dict.fromkeys(self.classes)) < len(self.classes):
            raise HeadwayError(f"classes: expected different classes, got {shown(list(self.classes))}.")
        if self.scaling is not None and self.peers is not None:
            raise HeadwayError(f"scaling: {ONE_PROCESS} Remove `peers` or `scaling`.")
        for name in self.aliases:
            if name in self.chains:
                raise HeadwayError(f"aliases.{name}: a cascade has this name. Use another name.")
        for number, route in enumerate(self.routes):
            if (route.body_limit or 0) > self.limits.body_bytes:
                raise HeadwayError(f"routes[{number}].body_limit: is above `body` of `limits`. Raise that limit first.")
        for name, fallback in self.fallbacks.items():
            if name in self.chains:
                raise HeadwayError(f"fallbacks.{name}: this model begins a cascade, which asks its next model instead.")
            own = self.aliases.get(name, name)
            again = [model for model in fallback.models if self.aliases.get(model, model) == own]
            if again:
                raise HeadwayError(
                    f"fallbacks.{name}: {shown(again[0])} is the same model by an alias. Name another one."
                )
        if len(self.backends) > self.max_backends:
            raise HeadwayError(
                f"backends: the file lists {len(self.backends)} engines, but `max_backends` is {self.max_backends}. "
                "Raise it."
            )
        return self if self.canary is None else replace(self, policies={**self.policies, CANARY: self.canary})

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Config:
        if isinstance(source, Mapping):
            return read(cls, dict(source), "")
        path = Path(source).expanduser()
        data, contents = _read_document(path)
        config = replace(read(cls, data, ""), file=path, contents=contents)
        handover = config.disaggregation
        if handover is None or handover.tls is None:
            return config
        return replace(config, disaggregation=replace(handover, tls=handover.tls.beside(path.parent)))


def find_file_errors(path: Path) -> list[str]:
    """Return all errors of a gateway's file that do not depend on each other."""
    return find_errors(Config, _read_document(path)[0], "")


def _read_document(path: Path) -> tuple[Json, tuple[bytes | None, ...]]:
    """Return the settings of a gateway's file, with absolute paths, and the bytes of the file and of those that it
    names."""
    text = read_text(path, "a YAML file in UTF-8")
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise HeadwayError(NOT_A_MAPPING.format(path=path))
    try:  # read them before they are used: if one changes meanwhile, `FileSource` sees a difference
        contents = (text.encode(), *named_contents(data, path))
    except OSError as error:
        raise HeadwayError(f"{path}: the files that it names cannot be read ({error.strerror}).") from error
    for section, key in named_files(data):
        section[key] = beside(section[key], path)
    return absolute(data, path.parent), contents


def named_files(data: Json) -> list[tuple[Json, str]]:
    """Return the (mapping, key) of each value in `data` that is the path of a policy file, of a file of API keys, or of
    a certificate, private key or other file about keys."""
    canary, shadow, backends = data.get("canary"), data.get("shadow"), data.get("backends")
    places = [(data, "policies"), (data, "keys")]
    if isinstance(admin := data.get("admin"), dict):
        places.append((admin, "operators"))
    if isinstance(jwt := data.get("jwt"), dict):
        places += [(jwt, "jwks"), (jwt, "ca")]
    for section in (data, admin):
        places += _tls_files(section, SERVER_FILES)
    for backend in backends.values() if isinstance(backends, dict) else ():
        places += _tls_files(backend, ENGINE_FILES)
    if isinstance(canary, dict):
        places.append((canary, "policies"))
    if isinstance(shadow, dict):
        places += [(shadow, name) for name in shadow]
        places += [(candidate, "policies") for candidate in shadow.values() if isinstance(candidate, dict)]
    return [(section, key) for section, key in places if isinstance(section.get(key), str)]


def _tls_files(section: Any, names: Sequence[str]) -> list[tuple[Json, str]]:
    tls = section.get("tls") if isinstance(section, dict) else None
    return [(tls, name) for name in names] if isinstance(tls, dict) else []


def named_contents(data: Json, path: Path) -> list[bytes | None]:
    """Return the bytes of the files that a gateway's file names. `data` has the content of that file, and `path` is its
    path. If the process or the machine can open no more files, raise OSError."""
    return [content_of(Path(beside(section[key], path))) for section, key in named_files(data)]


def content_of(path: Path) -> bytes | None:
    """Return the bytes of a file; None if it cannot be read. In a shortage of open files, raise OSError."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return None
