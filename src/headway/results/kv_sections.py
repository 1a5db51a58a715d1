"""The summary's sections on KV caches: tiers, loads and transfers, of one instance and of the whole cluster."""

from collections import Counter
from collections.abc import Sequence

from headway.errors import InvariantError
from headway.results.recorder import InstanceStats, Recorder, TierStats
from headway.results.records import group_by
from headway.results.sample import rate, ratio
from headway.results.statistics import spread_of
from headway.types import PS_PER_SECOND, Json


def transfers(recorder: Recorder, instances: Sequence[InstanceStats], warmup: int, length_ps: int) -> Json:
    """Return the section `transfer` of a disaggregated cluster.

    After its prompt is computed, a request first waits until the decode instance has room (`wait`), then until the last
    byte has arrived (`time`).
    """
    senders = [stats for stats in instances if stats.role == "prefill"]
    if not senders:
        return {}
    waits, moves = [], []
    for row in range(warmup, len(recorder)):
        arrived = recorder.transferred_ps[row]
        if arrived >= 0:
            handed = recorder.handed_ps[row]
            begun = max(handed, recorder.transfer_ps[row])
            waits.append(begun - handed)
            moves.append(arrived - begun)
    busy_ps = sum(stats.link_busy_ps for stats in senders)
    moved = sum(stats.sent_bytes for stats in senders)
    return {
        "transfer": {
            "count": len(moves),
            "bytes": moved,
            "bytes_per_s": rate(moved, length_ps),
            "wait": spread_of(waits),
            "time": spread_of(moves),
            "link_utilization": busy_ps / (len(senders) * length_ps) if length_ps else None,
        }
    }


def check_transfers(recorder: Recorder, instances: Sequence[InstanceStats], length_ps: int) -> None:
    """Raise unless each handed-over request ran first on a prefill and then on a decode instance, and no token was
    counted twice."""
    roles = [stats.role for stats in instances]
    times = ("started_ps", "handed_ps", "transfer_ps", "transferred_ps", "finished_ps")
    rows = recorder.select("prefill_instance", "instance", *times)
    for row, (prefill, decode, started, handed, begun, arrived, finished) in enumerate(rows):
        if prefill == -1:
            possible = handed == begun == arrived == -1
        else:
            # A request that had to leave its decode instance may continue on an instance that does prefill and decode.
            possible = roles[prefill] == "prefill" and (roles[decode] == "decode" or recorder.redirects[row] > 0)
            known = [at for at in (started, handed, arrived, finished) if at != -1]
            possible = possible and known == sorted(known) and (arrived == -1 or started <= begun <= arrived)
        if not possible:
            raise InvariantError(
                f"Request {row} is inconsistent: prefill on instance {prefill}, decode on instance {decode}. Its times "
                f"in ps, where -1 means never: start {started}, handed over {handed}, transfer from {begun} to "
                f"{arrived}, end {finished}."
            )
    for stats in instances:
        if not 0 <= stats.link_busy_ps <= length_ps:
            busy, length = stats.link_busy_ps / PS_PER_SECOND, length_ps / PS_PER_SECOND
            raise InvariantError(f"The link of {stats.id} was busy for {busy:.15g} s in a run of {length:.15g} s.")
    prompts = sum(stats.prefill_tokens + stats.cached_tokens for stats in instances)
    sent = sum(tokens * (1 + again) for tokens, again in recorder.select("prompt_tokens", "retries"))
    if prompts > sent:
        raise InvariantError(f"{prompts} prompt tokens were computed or cached, but requests have only {sent}.")
    generated = sum(stats.output_tokens for stats in instances)
    received = sum(recorder.output_tokens) + recorder.lost_tokens
    if generated != received:
        raise InvariantError(f"Instances generated {generated} tokens, but requests received {received}.")


def tiers(instances: Sequence[InstanceStats], length_ps: int) -> Json:
    """Return the sections `tiers` and `loads`, if there are tiers below the GPU."""
    prompts: Counter[str] = Counter()
    for stats in instances:
        for tier in stats.tiers:
            prompts[tier.name] += stats.prompt_tokens
    if not prompts:
        return {}
    sections = {"gpu": _gpu([stats for stats in instances if stats.tiers])}
    for name, stores in group_by(distinct_stores(instances), lambda store: store.name).items():
        section = {"stores": len(stores), **_figures(stores, prompts[name], length_ps)}
        sections[name] = {**section, "samples": _samples(stores)}
    return {"tiers": sections, **_loads([wait for stats in instances for wait in stats.load_waits_ps])}


def _loads(waits_ps: list[int]) -> Json:
    return {"loads": {"count": len(waits_ps), "wait": spread_of(waits_ps)}}


def _gpu(instances: list[InstanceStats]) -> Json:
    blocks = sum(stats.kv_blocks for stats in instances)
    loaded = sum(store.hit_tokens for store in distinct_stores(instances))
    hits = sum(stats.cached_tokens for stats in instances) - loaded
    used = [sum(at) for at in zip(*(stats.kv_samples for stats in instances), strict=True)]
    return {
        "stores": len(instances),
        "blocks": blocks,
        "hit_tokens": hits,
        "hit_ratio": ratio(hits, sum(stats.prompt_tokens for stats in instances)),
        "utilization": ratio(sum(used), len(used) * blocks),
        "peak_utilization": max(stats.peak_kv_blocks / stats.kv_blocks for stats in instances),
        "samples": {
            "interval_s": instances[0].kv_interval_ps / PS_PER_SECOND,
            "utilization": [count / blocks for count in used],
        },
    }


def distinct_stores(instances: Sequence[InstanceStats]) -> list[TierStats]:
    """Return the stores below the GPUs, each shared store once."""
    return list({(tier.name, tier.owner): tier for stats in instances for tier in stats.tiers}.values())


def own_tiers(stats: InstanceStats, length_ps: int) -> Json:
    """Return the sections `tiers` and `loads` of one instance, without shared stores."""
    if not stats.tiers:
        return {}
    own = [tier for tier in stats.tiers if tier.owner == stats.id]
    figures = {tier.name: _figures([tier], stats.prompt_tokens, length_ps) for tier in own}
    return {"tiers": figures, **_loads(stats.load_waits_ps)}


def _figures(stores: list[TierStats], prompt_tokens: int, length_ps: int) -> Json:
    blocks = sum(store.blocks for store in stores)
    moved = sum(store.moved_bytes for store in stores)
    hits = sum(store.hit_tokens for store in stores)
    peaks = [store.peak_blocks / store.blocks for store in stores]
    return {
        "blocks": blocks,
        "hit_tokens": hits,
        "hit_ratio": ratio(hits, prompt_tokens),
        "stored_blocks": sum(store.stored_blocks for store in stores),
        "loaded_blocks": sum(store.loaded_blocks for store in stores),
        "thrashed_blocks": sum(store.thrashed_blocks for store in stores),
        "transfer_bytes": moved,
        "transfer_bytes_per_s": rate(moved, length_ps),
        "link_utilization": ratio(sum(store.link_busy_ps for store in stores), len(stores) * length_ps),
        "utilization": ratio(sum(store.block_ps for store in stores), blocks * length_ps),
        "peak_utilization": max(peaks),
    }


def _samples(stores: list[TierStats]) -> Json:
    """Return the fraction of blocks in use over time, for all stores of a tier together."""
    blocks = sum(store.blocks for store in stores)
    used = [sum(at) for at in zip(*(store.samples for store in stores), strict=True)]
    return {"interval_s": stores[0].interval_ps / PS_PER_SECOND, "utilization": [count / blocks for count in used]}
