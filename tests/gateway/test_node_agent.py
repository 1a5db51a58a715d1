"""The agent beside an engine: what it writes to a real etcd, and that it comes back after whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from aiohttp import web
from etcd_server import EtcdServer, started

from conftest import ROOT
from free_ports import free_port
from headway.cli import status
from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.membership.agent_engine import Engine
from headway.gateway.membership.agent_readings import Gauge, Meter, command_gauge, file_gauge, nvml_gauge
from headway.gateway.membership.etcd_client import Etcd
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.membership.node import Node
from headway.gateway.membership.node_agent import Agent, advertised_url

KEY = "/headway/nodes/a"
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
vllm:prefix_cache_hits_total{model_name="m"} %d.0
vllm:prefix_cache_queries_total{model_name="m"} %d.0
"""


class FakeEngine:
    def __init__(self) -> None:
        self.port = free_port()
        self.health, self.metrics = 200, METRICS % (0, 0)
        self.models = ["m", "m-lora"]
        self.runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        async def health(request: web.Request) -> web.Response:
            return web.Response(status=self.health)

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

        async def metrics(request: web.Request) -> web.Response:
            return web.Response(text=self.metrics)

        app = web.Application()
        app.add_routes([web.get("/health", health), web.get("/v1/models", models), web.get("/metrics", metrics)])
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None


class Scene:
    def __init__(self, server: EtcdServer, etcd: Etcd, engine: FakeEngine) -> None:
        self.server, self.etcd, self.engine = server, etcd, engine

    def agent(self, heartbeat_s: float = 20.0, meter: Meter | None = None, **more: Any) -> Agent:
        etcd = Etcd(read(EtcdSettings, self.server.url, "etcd"))
        return Agent("a", Node(self.engine.url, **more), etcd, Engine(self.engine.url), meter, heartbeat_s)

    async def node(self) -> dict[str, Any] | None:
        item = await self.etcd.get(KEY)
        return None if item is None else json.loads(item.value)


def play(server: EtcdServer, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def go() -> None:
        engine, etcd = FakeEngine(), Etcd(read(EtcdSettings, server.url, "etcd"))
        await engine.start()
        try:
            await asyncio.wait_for(act(Scene(server, etcd, engine)), 120)
        finally:
            await engine.stop()
            await etcd.delete(KEY)
            await etcd.close()

    asyncio.run(go())


async def close(*agents: Agent) -> None:
    for agent in agents:
        await agent.engine.close()
        await agent.etcd.close()


shared = pytest.fixture(started, scope="module")
server = pytest.fixture(started)


def test_an_agent_registers_its_engine_with_a_lease_and_tells_its_load(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        agent = scene.agent(role="decode", max_batch_size=64, version="1.2.3")
        await agent.beat()
        scene.engine.metrics = METRICS % (30, 40)
        await agent.beat()
        node = await scene.node()
        assert node is not None
        assert (node["url"], node["models"], node["role"]) == (scene.engine.url, ["m", "m-lora"], "decode")
        assert (node.get("ready", True), node["version"], node["max_batch_size"]) == (True, "1.2.3", 64)
        assert node["signals"] == {
            "running": 3,
            "queued": 2,
            "kv_used": 250,
            "kv_blocks": 1000,
            "hit_rate": 0.75,
        }
        item = await scene.etcd.get(KEY)
        assert item is not None and item.lease == agent.lease != 0
        await close(agent)

    play(shared, act)


def test_an_engine_that_is_not_there_yet_is_registered_as_not_ready_and_asked_again(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        await scene.engine.stop()
        agent = scene.agent()
        await agent.beat()
        node = await scene.node()
        assert node is not None and not node["ready"] and "cannot be reached" in node["why"]
        assert not node.get("models") and not node.get("signals")
        await scene.engine.start()
        scene.engine.health = 503
        await agent.beat()
        node = await scene.node()
        assert node is not None and node["why"] == "the engine's /health returned status 503"
        scene.engine.health = 200
        await agent.beat()
        node = await scene.node()
        assert node is not None and node.get("ready", True) and node["models"] == ["m", "m-lora"]
        scene.engine.health = 500
        await agent.beat()
        scene.engine.health, scene.engine.models = 200, ["other"]  # it was started anew with another model
        await agent.beat()
        node = await scene.node()
        assert node is not None and node["models"] == ["other"]
        await close(agent)

    play(shared, act)


def test_models_that_are_named_are_not_asked_for(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        agent = scene.agent(models=["mine"])
        await agent.beat()
        node = await scene.node()
        assert node is not None and node["models"] == ["mine"]
        await close(agent)

    play(shared, act)


def test_an_engine_without_health_or_figures_is_ready_when_it_lists_models(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        scene.engine.health, scene.engine.metrics = 404, "nothing that is known\n"
        agent = scene.agent()
        await agent.beat()
        node = await scene.node()
        assert node is not None and node.get("ready", True) and not node.get("signals")
        await close(agent)

    play(shared, act)


def test_a_lost_lease_is_replaced(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        agent = scene.agent()
        await agent.beat()
        lease = agent.lease
        await scene.etcd.revoke(lease)
        assert await scene.node() is None
        await agent.beat()
        assert await scene.node() is not None and agent.lease != lease
        await close(agent)

    play(shared, act)


def test_a_cordon_is_not_touched_by_heartbeats(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        agent = scene.agent()
        await agent.beat()
        revision, _ = await scene.etcd.put("/headway/cordon/a", b"{}")
        for _ in range(3):
            await agent.beat()
        await agent.leave(0)
        item = await scene.etcd.get("/headway/cordon/a")
        assert item is not None and item.revision == revision
        await scene.etcd.delete("/headway/cordon/a")
        await close(agent)

    play(shared, act)


def test_an_agent_that_is_started_anew_takes_over_and_outlives_the_first_ones_lease(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        first, second = scene.agent(), scene.agent()
        await first.beat()
        await second.beat()
        await scene.etcd.revoke(first.lease)  # as if it had expired
        node = await scene.node()
        assert node is not None and node["agent"] == second.me
        await close(first, second)

    play(shared, act)


def test_two_agents_under_one_name_are_told(shared: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        first, second = scene.agent(), scene.agent()
        for _ in range(3):
            await first.beat()
            await second.beat()
        messages = [record.getMessage() for record in caplog.records if "another agent" in record.getMessage()]
        assert len(messages) == 2  # one a side
        await close(first, second)

    play(shared, act)


@pytest.mark.parametrize("lost", [False, True], ids=["with its data", "with its data lost"])
def test_an_agent_registers_again_when_etcd_was_killed_and_is_back(
    server: EtcdServer, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        agent = scene.agent(heartbeat_s=60.0)
        await agent.beat()
        scene.server.kill()
        for _ in range(3):
            await agent.beat()
        assert agent.beats == 1
        assert len([record for record in caplog.records if "no endpoint answers" in record.getMessage()]) == 1
        if lost:
            scene.server.lose_data()
        await asyncio.to_thread(scene.server.start)
        await agent.beat()
        node = await scene.node()
        assert agent.beats == 2 and node is not None and node["agent"] == agent.me
        await close(agent)

    play(server, act)


def test_an_agent_that_ends_waits_for_its_engine_and_takes_the_node_away(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        agent, ended = scene.agent(heartbeat_s=0.05), asyncio.Event()
        running = asyncio.create_task(agent.run(ended, 3600.0))
        while agent.beats < 3:
            await asyncio.sleep(0.01)
        ended.set()
        while (item := await scene.node()) is None or item.get("ready", True):
            await asyncio.sleep(0.01)
        assert item["why"] == "its agent is stopping" and not running.done()  # three requests run, two wait
        scene.engine.metrics = METRICS.replace(" 3.0", " 0.0").replace(" 2.0", " 0.0") % (0, 0)
        await running
        assert await scene.node() is None

    play(shared, act)


@pytest.mark.parametrize(
    ("engine", "advertise", "endpoint", "url"),
    [
        ("http://10.0.0.7:8000/", None, "http://10.0.0.5:2379", "http://10.0.0.7:8000"),
        ("http://127.0.0.1:8000", "http://10.0.0.7:8000", "http://10.0.0.5:2379", "http://10.0.0.7:8000"),
        ("http://127.0.0.1:8000", None, "http://localhost:2379", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "http://10.0.0.5:2379", "http://127.0.0.1:8000"),
        ("http://gpu-7:8000", None, "http://10.0.0.5:2379", "http://gpu-7:8000"),
    ],
)
def test_the_address_that_gateways_get(engine: str, advertise: str | None, endpoint: str, url: str) -> None:
    assert advertised_url(engine, advertise, (endpoint,)) == url


@pytest.mark.parametrize(
    ("engine", "advertise"),
    [
        ("http://0.0.0.0:8000", None),
        ("http://127.0.0.1:8000", "http://0.0.0.0:8000"),
        ("http://[::]:8000", None),
        ("http://127.0.0.1:8000", None),
        ("http://localhost:8000", None),
    ],
)
def test_an_address_that_no_gateway_could_call_is_refused_and_a_right_one_said(
    engine: str, advertise: str | None
) -> None:
    with pytest.raises(HeadwayError, match=r"--advertise .*as in http://\S+:8000\.$"):
        advertised_url(engine, advertise, ("http://10.0.0.5:2379",))


# --- utilisation and power -------------------------------------------------------------------------------------------


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, tells: bool = True) -> None:
        self.tells = tells

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, card: int) -> int:
        return card

    def nvmlDeviceGetUtilizationRates(self, card: int) -> SimpleNamespace:
        if not self.tells:
            raise self.NVMLError
        return SimpleNamespace(gpu=40 + 20 * card)

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:
        return 300_000 + 100_000 * card


def test_the_cards_of_an_engine_count_together() -> None:
    assert nvml_gauge(FakeNvml()).read() == {"busy": 0.5, "watts": 700.0}
    assert nvml_gauge(FakeNvml(), [1]).read() == {"busy": 0.6, "watts": 400.0}
    assert nvml_gauge(FakeNvml(tells=False), [0]).read() == {"watts": 300.0}
    with pytest.raises(HeadwayError, match="there is no GPU 2; NVML reports 2"):
        nvml_gauge(FakeNvml(), [2])


def test_figures_come_from_a_file_or_a_command(tmp_path: Path) -> None:
    file = tmp_path / "readings.json"
    file.write_text('{"busy": 0.4, "watts": 310}')
    assert file_gauge(file).read() == command_gauge(f"cat {file}").read() == {"busy": 0.4, "watts": 310.0}
    os.utime(file, (1, 1))
    for gauge, message in (
        (file_gauge(file), "was written more than 60 s ago"),
        (file_gauge(tmp_path / "none"), "cannot be read"),
        (command_gauge("echo no >&2; exit 3"), "failed with status 3 .no."),
        (command_gauge("echo 12"), "expected JSON"),
        (command_gauge("""echo '{"busy": 40}'"""), "busy 40"),
        (command_gauge("""echo '{"volts": 40}'"""), "volts 40"),
    ):
        with pytest.raises(HeadwayError, match=message):
            gauge.read()


def test_a_meter_gives_means_of_the_last_seconds_and_forgets_older_ones() -> None:
    now, power = [0.0], [0.0]

    def read_power() -> dict[str, float]:
        if power[0] < 0:
            raise HeadwayError("it is broken")
        return {"watts": power[0]}

    meter = Meter(Gauge("a test", read_power), window_s=5.0, clock=lambda: now[0])

    async def act() -> None:
        assert meter.means() == {}
        for at, watts in ((0.0, 1000.0), (4.0, 200.0), (6.0, 400.0), (7.0, -1.0)):
            now[0], power[0] = at, watts
            await meter.sample()
        assert meter.means() == {"watts": 300.0}
        now[0] = 20.0
        assert meter.means() == {}

    asyncio.run(act())


# --- the verbs -------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    status: int
    out: str
    said: str


Verb = Callable[..., Answer]


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    """A verb of the command line in this process, which is quicker than one of its own."""

    def run(*words: str) -> Answer:
        capsys.readouterr()
        return Answer(status(list(words)), *capsys.readouterr())

    return run


def test_the_verb_registers_an_engine_until_sigterm(shared: EtcdServer) -> None:
    async def act(scene: Scene) -> None:
        scene.engine.metrics = METRICS.replace(" 3.0", " 0.0").replace(" 2.0", " 0.0") % (0, 0)
        command = [sys.executable, "-m", "headway.cli", "agent", "--engine", scene.engine.url, "--id", "a"]
        command += ["--etcd", shared.url, "--heartbeat", "2s", "--pool", "large", "--set", "max_batch_size=64"]
        command += ["--readings-command", """echo '{"busy": 0.4, "watts": 310}'"""]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            while (item := await scene.node()) is None or "watts" not in item["signals"]:
                assert process.poll() is None, process.communicate()
                await asyncio.sleep(0.05)
        finally:
            process.send_signal(signal.SIGTERM)
            out, output = await asyncio.to_thread(process.communicate)
        assert (item["pool"], item["max_batch_size"], item["models"]) == ("large", 64, ["m", "m-lora"])
        assert item["signals"]["watts"] == 310 and item["signals"]["busy"] == pytest.approx(0.4)
        assert (process.returncode, out) == (0, ""), output
        assert "utilisation and power come from the command" in output and "is registered" in output
        assert await scene.node() is None

    play(shared, act)


@pytest.mark.full
def test_operators_list_cordon_and_drain_nodes(shared: EtcdServer, verb: Verb) -> None:
    async def act(scene: Scene) -> None:
        async def fleet(*words: str) -> Answer:
            return await asyncio.to_thread(verb, "fleet", *words, "--etcd", shared.url)

        agent, ended = scene.agent(heartbeat_s=1.0, pool="large"), asyncio.Event()
        running = asyncio.create_task(agent.run(ended, 0.0))
        while not agent.beats:
            await asyncio.sleep(0.01)
        listed = json.loads((await fleet("list", "--json")).out)["nodes"]
        assert [(row["name"], row["pool"], row["ready"], row["cordoned"]) for row in listed] == [
            ("a", "large", True, False)
        ]
        assert (await fleet("cordon", "a", "--why", "repairs")).said == "headway: a is cordoned\n"
        table = (await fleet("list")).out
        assert "ready, cordoned" in table and "repairs" in table and "25.0 %" in table
        assert (await fleet("uncordon", "a")).said == "headway: a is no longer cordoned\n"
        assert (await fleet("uncordon", "a")).said == "headway: a was not cordoned\n"
        busy = await fleet("drain", "a", "--wait", "2s")
        assert (busy.status, busy.out) == (1, "") and "a is cordoned, but" in busy.said
        scene.engine.metrics = METRICS.replace(" 3.0", " 0.0").replace(" 2.0", " 0.0") % (0, 0)
        assert await fleet("drain", "a") == (0, "", "headway: a is drained\n")
        assert (await fleet("drain", "unknown")).said == "headway: unknown is cordoned, but no agent reports its load\n"
        assert "unknown  cordoned, not registered" in (await fleet("list")).out
        ended.set()
        await running
        for name in ("a", "unknown"):
            assert await scene.etcd.delete(f"/headway/cordon/{name}")

    play(shared, act)


def test_operators_push_policies_and_hear_what_gateways_made_of_them(
    shared: EtcdServer, verb: Verb, tmp_path: Path
) -> None:
    good, wrong, foreign = (tmp_path / name for name in ("good.yaml", "wrong.yaml", "foreign.yaml"))
    good.write_text("policies: {routing: {name: kv-aware, kv: 0.7}}")
    wrong.write_text("routing: {name: kv-aware, kvv: 0.7}")
    foreign.write_text("routing: evil.py:Evil")
    push = ("fleet", "policy", "--etcd", shared.url, "--wait", "100ms")

    async def answer(**status: Any) -> None:
        async with Etcd(read(EtcdSettings, shared.url, "etcd")) as etcd:
            document = {"revision": 10**9, **status}
            await etcd.put("/headway/routing/policy-status/g:8000", json.dumps(document).encode())

    assert verb(*push).out == "etcd contains no policies.\n"
    pushed = verb(*push, str(good))
    assert pushed.status == 0 and "kv: 0.7" in pushed.out and "no gateway has answered" in pushed.said
    asyncio.run(answer(accepted=False, error="there is no such policy"))
    assert verb(*push, str(good)).status == 1
    asyncio.run(answer(accepted=True))
    shown = verb(*push, str(good), "--json")
    assert shown.status == 0 and json.loads(shown.out)["gateways"]["g:8000"]["accepted"]
    assert json.loads(shown.out)["policies"] == {"routing": {"name": "kv-aware", "kv": 0.7}}
    for file, why in ((wrong, "kvv"), (foreign, "evil.py")):
        refused = verb(*push, str(file))
        assert refused.status == 2 and file.name in refused.said and why in refused.said
    assert json.loads(verb(*push, "--json").out)["policies"] == {"routing": {"name": "kv-aware", "kv": 0.7}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "http://0.0.0.0:8000"), "--engine: gateways on other machines cannot reach 0.0.0.0"),
        (("--engine", "http://10.0.0.7:8000", "--set", "max_batch=3"), "Did you mean 'max_batch_size'?"),
        (("--engine", "http://10.0.0.7:8000", "--set", "max_batch_size=many"), "--set max_batch_size: Expected"),
        (("--engine", "http://10.0.0.7:8000", "--id", "a/b"), "--id: a node's name has up to 128 characters"),
        (("--engine", "http://10.0.0.7:8000", "--gpus", "x"), "--gpus: expected GPU numbers"),
        (("--engine", "http://10.0.0.7:8000", "--heartbeat", "0s"), "--heartbeat: must be greater"),
        (("--engine", "10.0.0.7:8000"), "--engine: expected a URL"),
        (("--engine", "http://10.0.0.7:8000", "--engine-key-env", "NOT_SET_X"), "NOT_SET_X is not set"),
    ],
)
def test_wrong_options_of_the_agent_are_told(words: tuple[str, ...], message: str, verb: Verb) -> None:
    process = verb("agent", "--etcd", "127.0.0.1:1", *words)
    assert process.status == 2 and message in process.said, process.said


def test_a_fleet_without_its_etcd_is_told(verb: Verb) -> None:
    process = verb("fleet", "list", "--etcd", f"127.0.0.1:{free_port()}")
    assert process.status == 2 and "no endpoint answers" in process.said
