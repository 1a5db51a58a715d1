"""Read the node pools, the autoscaler and the start of instances from a policy bundle of BLIS."""

from typing import Any, Final

from msgspec import Struct

from headway.config.section import read
from headway.config.units import duration_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.interop import plain
from headway.types import PS_PER_SECOND, PS_PER_US, Json

AUTOSCALING: Final = ("node_pools", "autoscaler", "instance_lifecycle")
GPUS: Final = {"a100-80": "a100-80gb"}  # BLIS's name of a GPU -> Headway's name, if they differ in more than case
# Headway measures the compute capacity only at queues of at least this length. BLIS never measures it, so set a length
# that no queue reaches.
NEVER: Final = 10_000


class _Delay(Struct):
    mean: float = 0.0  # in seconds
    stddev: float = 0.0


class _Pool(Struct):
    name: str
    gpu_type: str
    gpus_per_node: int
    gpu_memory_gib: float
    initial_nodes: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    provisioning_delay: Any = None
    cost_per_hour: float = 0.0


class _Analyzer(Struct):
    kv_cache_threshold: float = 0.0  # 0 means BLIS's default, here and in the next fields
    scale_up_threshold: float = 0.0
    scale_down_boundary: float = 0.0
    avg_input_tokens: float = 0.0


class _Autoscaler(Struct):
    interval_us: float = 0.0
    scale_up_stabilization_window_us: float = 0.0
    scale_down_stabilization_window_us: float = 0.0
    hpa_scrape_delay: Any = None
    analyzer: Any = None
    scale_up_cooldown_us: float = 0.0  # earlier versions of BLIS use this name and the next name
    scale_down_cooldown_us: float = 0.0
    actuation_delay: Any = None


class _Lifecycle(Struct):
    loading_delay: Any = None
    warm_start_initial_instances: bool = False


def import_scaling(sections: Json, where: str, notes: list[str]) -> Json:
    """Translate the sections to the keys `policies`, `cluster` and `scaling` of a scenario. Keys without a value are
    left out."""
    result: Json = {}
    scaling: Json = {}
    if sections["node_pools"]:
        result["cluster"], provisioning = _cluster(sections["node_pools"], f"{where}.node_pools", notes)
        scaling |= provisioning
    if sections["instance_lifecycle"] is not None:
        place = f"{where}.instance_lifecycle"
        lifecycle = read(_Lifecycle, sections["instance_lifecycle"], place)
        load = _duration(lifecycle.loading_delay, f"{place}.loading_delay")
        if load is not None:
            scaling["model_load"] = load
            if not lifecycle.warm_start_initial_instances:
                notes.append("instance_lifecycle: the first instances are ready at the start, without loading.")
    if sections["autoscaler"] is not None:
        policy, own = _autoscaler(sections["autoscaler"], f"{where}.autoscaler", notes)
        if policy is not None:
            result["policies"] = {"scaling": policy}
            if not sections["node_pools"]:
                notes.append("the bundle has no node_pools: set cluster.max_replicas, or the pool cannot grow.")
        scaling |= own
    return result | ({"scaling": scaling} if scaling else {})


def _cluster(pools: Any, where: str, notes: list[str]) -> tuple[Json, Json]:
    if not isinstance(pools, list) or len(pools) > 1:
        raise HeadwayError(f"{where}: only a single pool is supported. Write others as cluster.deployments.")
    pool = read(_Pool, pools[0], f"{where}[0]")
    most = pool.max_nodes * pool.gpus_per_node
    if most < 1:
        raise HeadwayError(f"{where}[0].max_nodes: the pool has no GPUs. Set max_nodes and gpus_per_node to 1 or more.")
    notes.append("cluster.instances is 1, the default of BLIS; each instance uses one GPU. Set instances and tp.")
    if pool.initial_nodes < pool.max_nodes:
        notes.append("initial_nodes is ignored: provisioning takes the same time for every new instance.")
    if pool.min_nodes:
        notes.append("min_nodes is ignored: the lowest number of instances is 1.")
    if pool.cost_per_hour:
        notes.append("cost_per_hour is ignored: cluster.gpu has its own price.")
    notes.append("gpu_memory_gib is ignored: cluster.gpu has its own memory.")
    delay = _duration(pool.provisioning_delay, f"{where}[0].provisioning_delay")
    gpu = pool.gpu_type.lower()
    cluster = {"instances": 1, "gpu": GPUS.get(gpu, gpu), "min_replicas": 1, "max_replicas": most}
    return cluster, {} if delay is None else {"provisioning": delay}


def _autoscaler(section: Any, where: str, notes: list[str]) -> tuple[Json | None, Json]:
    keys = read(_Autoscaler, section, where)
    if keys.interval_us <= 0:
        notes.append("autoscaler is ignored: an interval_us of 0 disables it.")
        return None, {}
    analyzer = read(_Analyzer, keys.analyzer or {}, f"{where}.analyzer")
    for name in ("scale_up_stabilization_window_us", "scale_up_cooldown_us"):
        if getattr(keys, name):
            notes.append(f"{name} is ignored: the pool grows at the first check that finds it too small.")
    for name in ("hpa_scrape_delay", "actuation_delay"):
        if _duration(getattr(keys, name), f"{where}.{name}") is not None:
            notes.append(f"{name} is ignored: set signals.poll_interval and signals.poll_delay.")
    if analyzer.avg_input_tokens:
        notes.append("avg_input_tokens is ignored: a waiting request counts as the mean prompt in flight.")
    policy = {
        "name": "kv-token",
        "kv_threshold": analyzer.kv_cache_threshold or 0.8,
        "queue_threshold": NEVER,
        "scale_up": analyzer.scale_up_threshold or 0.8,
        "scale_down": analyzer.scale_down_boundary or 0.4,
        "scale_down_delay_s": plain((keys.scale_down_stabilization_window_us or keys.scale_down_cooldown_us) / 1e6),
    }
    return policy, {"interval": duration_text(int(keys.interval_us * PS_PER_US))}


def _duration(section: Any, where: str) -> Any:
    """Return a delay as a duration or, if it varies, as a normal distribution. If there is no delay, return None."""
    delay = read(_Delay, section or {}, where)
    for name in ("mean", "stddev"):
        if not 0 <= getattr(delay, name) < 1e9:
            raise HeadwayError(f"{where}.{name}: expected seconds of 0 or more, got {shown(getattr(delay, name))}.")
    mean, std = (duration_text(round(seconds * PS_PER_SECOND)) for seconds in (delay.mean, delay.stddev))
    if not delay.mean and not delay.stddev:
        return None
    return mean if not delay.stddev else {"dist": "normal", "mean": mean, "std": std}
