"""Translate a weighted profile to llm-d's `EndpointPickerConfig`, and back.

If only one of the two projects has a feature, and decisions depend on this feature, the translation fails with an
error. If decisions do not depend on it, the translation adds a note.
"""

from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway.config.documents import beside, read_yaml
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError, argument
from headway.interop import Translation
from headway.interop import llmd_plugins as plugins
from headway.policies.bundle import Bundle
from headway.policies.profile import DEFAULT
from headway.policies.registry import AUTO, DEFAULT_POLICIES
from headway.scenario.scenario import Policies, Scenario
from headway.types import Json

KIND: Final = "EndpointPickerConfig"
VERSION: Final = "inference.networking.x-k8s.io/v1alpha1"
VERSIONS: Final = (VERSION, "llm-d.ai/v1alpha1", "llm-d.ai/v1")
SCHEDULING: Final = ("-scorer", "-filter", "-picker")  # suffixes of the plugin types that a profile may contain
ELSEWHERE: Final = {  # section that does not affect routing -> text of the note on it
    "featureGates": "Headway has no feature gates",
    "dataLayer": "use `signals` and `events` of a gateway's file",
    "flowControl": "use policies.flow",
    "requestHandler": "Headway's request parser has no settings",
    "parser": "Headway's request parser has no settings",
    "saturationDetector": "use policies.admission and policies.flow",
}


# --- export -----------------------------------------------------------------------------------------------------------


def routing_of(source: str) -> Any:
    """Return the routing policy of a file: a scenario, a bundle, a gateway's file, a mapping of policies by stage, or a
    single policy. The source may also be a string of scorers, such as `prefix-affinity:3,queue-depth:2`."""
    path = Path(source).expanduser()
    if not path.exists():
        if path.suffix in (".yaml", ".yml") or ":" not in source:
            raise HeadwayError(f"{source}: there is no such file, and the text is not a list of scorers and weights.")
        return {"name": "weighted", "scorers": source}
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise HeadwayError(f"{source}: expected a scenario, a bundle or policies, got {shown(data)}.")
    if "workload" in data or "preset" in data:
        return Scenario.load(path).policies.routing
    policies = data.get("policies", data)
    if "format" in data:
        policies = Bundle.read(str(path)).policies
    elif isinstance(policies, str):
        policies = Bundle.read(beside(policies, path)).policies
    if not isinstance(policies, dict):
        raise HeadwayError(f"{source}: policies: expected a mapping of stages, got {shown(policies)}.")
    if "routing" in policies:
        return policies["routing"]
    if "name" in policies or "scorers" in policies:
        return {"name": "weighted", **policies}
    raise HeadwayError(f"{source}: policies.routing is missing.")


def export_profile(routing: Any) -> Translation:
    """Translate a routing policy to llm-d's configuration. `routing` is written like `policies.routing` of a
    scenario."""
    where = "policies.routing"
    profile = Policies(routing=routing).explicit("routing")
    if profile["name"] != "weighted":
        raise HeadwayError(f"{where}: llm-d supports only weighted profiles, got {shown(profile['name'])}.")
    notes: list[str] = []
    config = _Config(notes)
    for item in profile["filters"]:
        parameters = plugins.filter_parameters(item, f"{where}.filters") if "max_load" in item else {}
        config.add(plugins.FILTERS, "filters", item, parameters, None)
    for item in profile["scorers"]:
        parameters = plugins.scorer_parameters(item["name"], item, notes)
        config.add(plugins.SCORERS, "scorers", item, parameters, item["weight"])
    picker = profile["picker"]
    if picker.get("seed") is not None:
        notes.append("weighted-random: the seed is ignored in llm-d.")
    config.add(plugins.PICKERS, "picker", picker, {}, None)
    return Translation(config.document(), list(dict.fromkeys(notes)))


class _Config:
    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        # Settings of a prefix index (tokens per block, blocks per instance) -> plugins that use this index.
        self.indexes: dict[tuple[int, int | str], list[Json]] = {}
        self.plugins: list[Json] = []
        self.profile: list[Json] = []

    def add(self, parts: tuple[plugins.Part, ...], stage: str, item: Json, parameters: Json, weight: Any) -> None:
        part = plugins.ours(parts, item["name"])
        if part is None:
            known = ", ".join(each.name for each in parts)
            raise HeadwayError(
                f"policies.routing.{stage}: llm-d has no equivalent of {shown(item['name'])}. Supported: {known}."
            )
        if any(plugin["type"] == part.type for plugin in self.plugins):
            raise HeadwayError(f"policies.routing.{stage}: {part.name} is listed twice. llm-d allows it once.")
        if part.differs:
            self.notes.append(part.differs)
        plugin: Json = {"type": part.type}
        if parameters:
            plugin["parameters"] = parameters
        if part.prefixed:
            self.indexes.setdefault((item["block_tokens"], item["lru_blocks"]), []).append(plugin)
        self.plugins.append(plugin)
        self.profile.append({"pluginRef": part.type} | ({} if weight is None else {"weight": weight}))

    def document(self) -> Json:
        producers = []
        for (block_tokens, lru_blocks), users in self.indexes.items():
            parameters = plugins.producer_parameters(block_tokens, lru_blocks, self.notes)
            if len(self.indexes) == 1:
                producers.append({"type": plugins.PRODUCER, "parameters": parameters})
                continue
            name = f"prefix-{block_tokens}-{lru_blocks}"
            producers.append({"name": name, "type": plugins.PRODUCER, "parameters": parameters})
            for plugin in users:
                plugin["parameters"] = {**plugin.get("parameters", {}), plugins.PRODUCER_NAME: name}
        return {
            "apiVersion": VERSION,
            "kind": KIND,
            "plugins": [*producers, *self.plugins, {"type": plugins.HANDLER}],
            "schedulingProfiles": [{"name": "default", "plugins": self.profile}],
        }


# --- import -----------------------------------------------------------------------------------------------------------


class _Keys(Struct):
    apiVersion: str
    kind: str
    plugins: list[dict[str, Any]] | None = None
    schedulingProfiles: list[dict[str, Any]] | None = None
    featureGates: Any = None
    dataLayer: Any = None
    flowControl: Any = None
    requestHandler: Any = None
    parser: Any = None
    saturationDetector: Any = None


class _Plugin(Struct):
    type: str
    name: str | None = None
    parameters: Any = None


class _Profile(Struct):
    name: str
    plugins: list[dict[str, Any]] = []


class _Ref(Struct):
    pluginRef: str
    weight: float | int | None = None


def import_config(document: Any, where: str, profile: str | None = None) -> Translation:
    """Translate a profile of a configuration to `policies.routing`. If there are several profiles, `profile` names the
    one to translate."""
    keys = read(_Keys, document, where)
    if keys.kind != KIND:
        raise HeadwayError(f"{where}.kind: expected {KIND}, got {shown(keys.kind)}.")
    if keys.apiVersion not in VERSIONS:
        raise HeadwayError(f"{where}.apiVersion: expected one of {', '.join(VERSIONS)}, got {shown(keys.apiVersion)}.")
    notes: list[str] = []
    for name, why in ELSEWHERE.items():
        if getattr(keys, name) is not None:
            notes.append(f"{name} is ignored: {why}.")
    routing = _Reader(keys, where, notes).routing(profile)
    return Translation({"policies": {"routing": routing}}, list(dict.fromkeys(notes)))


class _Reader:
    def __init__(self, keys: _Keys, where: str, notes: list[str]) -> None:
        self.where, self.notes = where, notes
        self.plugins: dict[str, tuple[_Plugin, str]] = {}
        for at, plugin_keys in enumerate(keys.plugins or []):
            place = f"{where}.plugins[{at}]"
            plugin = read(_Plugin, plugin_keys, place)
            name = plugin.name or plugin.type
            if name in self.plugins:
                raise HeadwayError(f"{place}: two plugins have the name {shown(name)}. Rename one.")
            self.plugins[name] = (plugin, place)
        self.profiles = [
            read(_Profile, profile, f"{where}.schedulingProfiles[{at}]")
            for at, profile in enumerate(keys.schedulingProfiles or [])
        ]

    def routing(self, profile: str | None) -> Json:
        refs, place = self._refs(profile)
        self._note_rest([ref.pluginRef for ref in refs])
        if not refs:
            self.notes.append("the configuration names no scorers; the result has llm-d's default scorers.")
            return {"name": "weighted", "scorers": DEFAULT, "picker": "max-score"}
        scorers: Json = {}
        filters: list[Json] = []
        picker: str | None = None
        for at, ref in enumerate(refs):
            plugin, where = self._plugin(ref.pluginRef, f"{place}.plugins[{at}].pluginRef")
            if part := plugins.theirs(plugins.SCORERS, plugin.type):
                self._scorer(scorers, part, plugin, where, ref)
            elif part := plugins.theirs(plugins.FILTERS, plugin.type):
                parameters = plugins.read_filter(plugins.Parameters(plugin.parameters, where), self.notes)
                filters.append({"name": self._name(part), **parameters})
            elif part := plugins.theirs(plugins.PICKERS, plugin.type):
                plugins.read_picker(plugins.Parameters(plugin.parameters, where), self.notes)
                picker = self._name(part)
            else:
                self._other(plugin, where)
        if not scorers:
            raise HeadwayError(f"{place}: has no scorer. Add one, or use the policy {DEFAULT_POLICIES['routing']}.")
        routing: Json = {"name": "weighted", "scorers": scorers}
        if filters:
            routing["filters"] = filters
        routing["picker"] = picker or self._name(plugins.PICKERS[0])
        Policies(routing=routing).explicit("routing")  # raises an error if the translated policy is invalid
        return routing

    def _refs(self, name: str | None) -> tuple[list[_Ref], str]:
        if not self.profiles:  # without profiles, llm-d creates a profile from all plugins
            types = {name: plugin.type for name, (plugin, _) in self.plugins.items()}
            return [_Ref(name) for name, type_ in types.items() if type_.endswith(SCHEDULING)], self.where
        names = ", ".join(profile.name for profile in self.profiles)
        several, place = len(self.profiles) > 1, f"{self.where}.schedulingProfiles"
        if name is None and several:
            raise HeadwayError(f"{place}: there are several profiles. Choose one with {argument('profile')}: {names}.")
        profile = next((profile for profile in self.profiles if name in (None, profile.name)), None)
        if profile is None:
            raise HeadwayError(f"{place}: there is no profile {shown(name)}. Known: {names}.")
        if several:
            self.notes.append(f"only the profile {profile.name} is imported; the configuration has {names}.")
        place = f"{place}[{self.profiles.index(profile)}]"
        return [read(_Ref, ref, f"{place}.plugins[{at}]") for at, ref in enumerate(profile.plugins)], place

    def _note_rest(self, names: list[str]) -> None:
        """Add a note that lists the plugins of the configuration that the profile does not name. Producers and the
        profile handler are never listed, because a profile need not name them."""
        known = (*plugins.PRODUCERS, plugins.HANDLER)
        rest = [name for name, (plugin, _) in self.plugins.items() if name not in names and plugin.type not in known]
        if rest:
            self.notes.append(f"these plugins are ignored, because the profile does not use them: {', '.join(rest)}.")

    def _plugin(self, name: str, place: str) -> tuple[_Plugin, str]:
        if name not in self.plugins:
            raise HeadwayError(f"{place}: there is no plugin {shown(name)}. Known: {', '.join(self.plugins)}.")
        return self.plugins[name]

    def _name(self, part: plugins.Part) -> str:
        """Return Headway's name of a scorer, filter or picker. If it behaves differently in llm-d, add a note."""
        if part.differs:
            self.notes.append(part.differs)
        return part.name

    def _scorer(self, scorers: Json, part: plugins.Part, plugin: _Plugin, where: str, ref: _Ref) -> None:
        weight = 1 if ref.weight is None else ref.weight
        if weight == 0:
            self.notes.append(f"{ref.pluginRef} has the weight 0 and is ignored.")
            return
        if part.name in scorers:
            raise HeadwayError(
                f"{where}: {part.name} is listed twice. List each scorer once: a scorer has one weight and one index."
            )
        parameters = plugins.Parameters(plugin.parameters, where)
        index = self._index(parameters) if part.prefixed else {}
        plugins.check_scorer(plugin.type, parameters, self.notes)
        plain = int(weight) if isinstance(weight, float) and weight.is_integer() else weight
        scorers[self._name(part)] = {"weight": plain, **index} if index else plain

    def _index(self, parameters: plugins.Parameters) -> Json:
        name = parameters.text(plugins.PRODUCER_NAME)
        if name is not None:
            plugin, where = self._plugin(name, parameters.place(plugins.PRODUCER_NAME))
        else:
            producers = (entry for entry in self.plugins.values() if entry[0].type in plugins.PRODUCERS)
            plugin, where = next(producers, (_Plugin(plugins.PRODUCER), self.where))
        if plugin.type == plugins.PRECISE:
            self.notes.append(
                f"{plugins.PRECISE} uses the engines' KV events; set `events: {{belief: stored}}` in a gateway's file."
            )
            return {"lru_blocks": AUTO}
        return plugins.prefix_index(plugins.Parameters(plugin.parameters, where), self.notes)

    def _other(self, plugin: _Plugin, where: str) -> None:
        if plugin.type in plugins.ROLE_FILTERS:
            self.notes.append(f"{plugin.type} is ignored: Headway filters by the roles of instances.")
            return
        known = ", ".join(part.type for part in (*plugins.SCORERS, *plugins.FILTERS, *plugins.PICKERS))
        raise HeadwayError(f"{where}.type: Headway has no equivalent of {shown(plugin.type)}. Supported: {known}.")
