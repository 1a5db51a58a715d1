"""Engines with `models: auto` list their models themselves, LoRA adapters among them."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import chat, fetch

from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.engines import model_lists
from headway.gateway.engines.model_lists import read_list

AUTO = {"models": "auto"}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(model_lists, "INTERVAL_S", 0.02)
    monkeypatch.setattr(model_lists, "SOON_S", 0.02)


def start(live, *lists, members=None, **more):
    """Return a gateway whose engines list these models."""
    names = [f"e{number}" for number in range(len(lists))]
    gateway = live(len(lists), members=members or dict.fromkeys(names, AUTO), patience="100ms", **more)
    for engine, models in zip(gateway.engines, lists, strict=True):
        engine.models = models
    return gateway


def models(gateway):
    return [model["id"] for model in fetch(f"{gateway.url}/models").json()["data"]]


def test_requests_go_to_the_engine_that_lists_their_model(live):
    gateway = start(live, ["small"], ["big", "huge"])
    gateway.until(lambda: models(gateway) == ["small", "big", "huge"])
    for model, engine in (("small", "e0"), ("big", "e1"), ("huge", "e1")):
        gateway.until(lambda model=model: chat(gateway, model=model).status == 200)
        assert chat(gateway, model=model).headers["x-headway-target"] == engine
    answer = chat(gateway, model="none")
    assert (answer.status, answer.said) == (404, "model 'none' is not served")


def test_an_engine_receives_nothing_before_its_list_is_known(live):
    gateway = start(live, None)
    view = gateway.app.plane.views[0]
    gateway.until(
        lambda: gateway.app.fleet.names["e0"].unready == {"models": "its list of models has not been read yet"}
    )
    assert view.state == "unreachable" and models(gateway) == []
    assert chat(gateway, model="m").status in (404, 503)
    gateway.engines[0].models = ["m"]
    gateway.until(lambda: view.state == "ready")
    assert chat(gateway, model="m").status == 200


def test_a_list_that_changes_or_fails_later(live):
    gateway = start(live, ["m"])
    gateway.until(lambda: models(gateway) == ["m"])
    gateway.engines[0].models = ["m", "n"]
    gateway.until(lambda: models(gateway) == ["m", "n"])
    gateway.engines[0].models = None
    asked = len(gateway.engines[0].looked)
    gateway.until(lambda: len(gateway.engines[0].looked) > asked + 5)
    assert models(gateway) == ["m", "n"] and chat(gateway, model="n").status == 200


def test_policies_learn_of_adapters_as_engines_load_and_unload_them(live):
    gateway = start(live, ["base"], ["base"])
    gateway.until(lambda: models(gateway) == ["base"])
    requests = []
    gateway.app.services.on_end.append(lambda exchange, *_: requests.append(exchange.request))
    gateway.engines[1].models = ["base", ("sql", "base")]
    gateway.until(lambda: models(gateway) == ["base", "sql"])
    gateway.until(lambda: {view.state for view in gateway.app.plane.views[:2]} == {"ready"})
    assert chat(gateway, model="sql").headers["x-headway-target"] == "e1"
    chat(gateway, model="base")
    gateway.until(lambda: len(requests) == 2)
    assert [(request.model, request.adapter) for request in requests] == [("sql", "sql"), ("base", None)]
    gateway.engines[1].models = ["base"]
    gateway.until(lambda: models(gateway) == ["base"])
    assert not gateway.app.fleet.adapters and chat(gateway, model="sql").status == 404


def test_policies_see_how_many_adapters_fit_into_a_batch(live):
    gateway = start(live, ["base", ("sql", "base")], signals={"interval": "20ms"})
    line = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""} 1.0\n'
    gateway.engines[0].page = "vllm:num_requests_waiting 0\n" + line
    view = gateway.app.plane.views[0]
    gateway.until(lambda: (view.adapters, view.adapter_slots) == (("sql",), 4))


def test_a_new_offer_of_the_same_engine_keeps_its_models(live):
    gateway = start(live, ["m"])
    gateway.until(lambda: models(gateway) == ["m"])
    fleet = gateway.app.fleet

    async def offer(**more):
        spec = fleet.names["e0"].offered
        members = {"e0": {"url": spec.url, **more}}
        fleet.offer("file", Config.load({"backends": members}).backends)

    gateway.call(offer(models="auto", max_batch_size=7))
    assert fleet.names["e0"].spec.models == ("m",) and gateway.app.plane.views[0].max_batch_size == 7
    gateway.call(offer(models=["other"]))
    assert models(gateway) == ["other"] and gateway.app.plane.views[0].state == "ready"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"data": []}',
        '{"data": [{"id": 1}]}',
        '{"data": [{"id": "\\n"}]}',
        "[" * 5000,
        '{"data": null}',
    ],
)
def test_a_list_in_another_form_is_refused(text):
    with pytest.raises(HeadwayError):
        read_list(text)


def test_a_list_is_limited():
    entries = ",".join(f'{{"id": "m{number}"}}' for number in range(5000))
    assert len(read_list(f'{{"data": [{entries}]}}')) == 1000


@pytest.mark.parametrize("keys", [{"events": "tcp://x:1"}, {"gpu": "h200"}])
def test_keys_that_need_the_name_of_the_model_refuse_auto(keys):
    with pytest.raises(HeadwayError, match="is missing"):
        Config.load({"backends": {"a": {"url": "http://x:1", "models": "auto", **keys}}})


def test_models_are_a_list_or_auto():
    with pytest.raises(HeadwayError, match=r"backends.a.models: expected a list of names, or auto, got 'm'"):
        Config.load({"backends": {"a": {"url": "http://x:1", "models": "m"}}})
