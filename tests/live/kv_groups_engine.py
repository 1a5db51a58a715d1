"""Runs in vLLM's environment: lets vLLM's KV cache manager allocate and free what a recorded schedule says.

Each schedule comes in as a line of JSON. For each step, out goes the number of free blocks after its allocations, and
the tokens that each entering request hit.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    _get_kv_cache_groups_uniform_page_size,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

LONGEST = 100_000
ANSWER = "answer: "  # other lines of the output are vLLM's own


def manager(data: dict[str, Any]) -> KVCacheManager:
    size = data["block_tokens"]
    common: dict[str, Any] = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs: list[KVCacheSpec] = [FullAttentionSpec(**common) for _ in range(data["full"])]
    specs += [SlidingWindowSpec(**common, sliding_window=data["window"]) for _ in range(data["windows"])]
    mode = data["kept"]
    span = LONGEST if mode == "none" else size  # tokens of a block in a group of states
    specs += [
        MambaSpec(
            block_size=span,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode=mode,
            num_speculative_blocks=data["drafts"],
        )
        for _ in range(data["states"])
    ]
    groups = [KVCacheGroupSpec([f"layer.{place}"], spec) for place, spec in enumerate(specs)]
    # vLLM keeps one block as a placeholder.
    config = KVCacheConfig(num_blocks=data["pages"] + 1, kv_cache_tensors=[], kv_cache_groups=groups)
    block = span if data["states"] else size
    return KVCacheManager(
        config,
        max_model_len=LONGEST,
        scheduler_block_size=block if not data["caching"] else size,
        hash_block_size=block if not data["caching"] else size,
        max_in_flight_tokens=data["max_batch_tokens"],
        enable_caching=data["caching"],
    )


def grouped(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how vLLM groups the layers of a model, and the number of layers in the largest group."""
    common: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    layers: dict[str, KVCacheSpec] = {f"full.{place}": FullAttentionSpec(**common) for place in range(data["full"])}
    for place in range(data["windows"]):
        layers[f"sliding.{place}"] = SlidingWindowSpec(**common, sliding_window=data["window"])
    groups = _get_kv_cache_groups_uniform_page_size(layers)
    full = sum(isinstance(group.kv_cache_spec, FullAttentionSpec) for group in groups)
    most = max(len(group.layer_names) for group in groups)
    return [{"full": full, "windows": len(groups) - full, "layers": most}]


def answer(data: dict[str, Any]) -> list[dict[str, Any]]:
    if "grouped" in data:
        return grouped(data)
    cache = manager(data)
    hasher = get_request_block_hasher(data["block_tokens"], sha256) if data["caching"] else None
    requests: dict[str, Request] = {}
    told = []
    for step in data["steps"]:
        cache.new_step_starts()
        for row in step["left"]:
            request = requests[str(row)]
            cache.free(request)
            request.num_computed_tokens = 0
            request.status = RequestStatus.PREEMPTED
        # vLLM moves each window when it is the request's turn. Headway moves all of them first.
        for row, _, enters, _, computed in step["runs"]:
            if not enters:
                requests[str(row)].num_computed_tokens = computed  # the drafts of the last step that were accepted
                cache.remove_skipped_blocks(str(row), computed)
        hits = []
        for row, tokens, enters, known, _ in step["runs"]:
            request = requests.get(str(row))
            if request is None:
                params = SamplingParams(max_tokens=LONGEST)
                request = Request(str(row), data["prompts"][str(row)], params, None, block_hasher=hasher)
                requests[str(row)] = request
            while request.num_tokens < known:
                request.append_output_token_ids([1_000_000 + row * 1000 + request.num_tokens])
            new_blocks, found = None, 0
            if enters:
                new_blocks, found, _ = cache.get_computed_blocks(request)
                hits.append([row, found])
                tokens += step["cached"][str(row)] - found  # so that counts can be compared where hits differ
            request.status = RequestStatus.RUNNING
            if cache.allocate_slots(request, tokens, found, new_blocks) is None:
                return [{"error": f"step {len(told)}: no room for {tokens} tokens of request {row}"}]
            request.num_computed_tokens += found + tokens
        told.append({"free": cache.block_pool.get_num_free_blocks(), "hits": hits})
    return told


def main() -> None:
    """Answer each line of the input by a line."""
    init_none_hash(sha256)
    for line in sys.stdin:
        print(ANSWER + json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
