"""Many clients at once, some of which disconnect, on engines with little memory: nothing leaks."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from random import Random

from emulated import Emulated

from headway.emulator.kv_publisher import has_block
from headway.sim.instance_end import check_instance


async def storm(one: Emulated, requests: int) -> int:
    """Return how many clients got their answers; every third disconnects after some bytes."""
    draw = Random(5)

    async def ask(number: int) -> bool:
        await asyncio.sleep(number * 0.004)
        place = one.host.replicas[number % 2]
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        shared, own, tokens = draw.randrange(4), draw.randrange(8, 60), draw.randrange(2, 60)
        body = {"prompt": [shared] * 100 + [number + 9] * own, "max_tokens": tokens, "stream": bool(number % 2)}
        data = json.dumps(body).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(data) + data)
        if number % 3 == 0:
            await asyncio.sleep(draw.random() * 0.05)
            writer.transport.abort()
            return False
        answer = await reader.read()
        writer.close()
        return answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"0\r\n\r\n" if number % 2 else b"}")

    return sum(await asyncio.gather(*(ask(number) for number in range(requests))))


def test_nothing_is_left_after_a_storm() -> None:
    one = Emulated(
        {"instances": 2, "kv": {"gpu_blocks": 40}, "max_batch_tokens": 64},
        speed=10.0,
        events="tcp://127.0.0.1",
        events_port=0,
    )
    try:
        assert asyncio.run(asyncio.wait_for(storm(one, 150), 120)) == 100
        room = one.host.room
        one.until(lambda: not room.sinks and not any(instance.batch.running for instance in room.instances))
        assert sum(instance.stats.preemptions for instance in room.instances) > 0
        assert sorted(room.rows.free) == list(range(room.cluster.recorder.rows))
        for replica in one.host.replicas:
            instance, told = replica.instance, replica.publisher.published
            one.do(partial(check_instance, instance))
            assert instance.cache.held == 0 and instance.scheduler.count_queued() == 0
            assert all(
                has_block(instance.cache.pieces.get(key), block) for key, known in told.items() for block in known
            )
    finally:
        one.stop()
