"""An endpoint picker: a service for Envoy's external processing. It runs the control plane of Headway's gateway, but
forwards no requests itself. An inference gateway reports each request to the picker, asks it for an endpoint, and then
reports the engine's answer."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from headway.errors import HeadwayError
from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.exchange import Exchange
from headway.http.event_loop import end_signal
from headway.http.server_log import log_to_stderr
from headway.interop import ext_proc
from headway.interop.epp_stream import Pick, Stream

OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # off, because two pickers at one address would each see half of the requests
)

log = logging.getLogger("headway.epp")


class Picker:
    """Headway's gateway as an endpoint picker. Instead of connections from clients, it receives calls from an inference
    gateway, one call per HTTP request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: Config) -> None:
        for name, section in (("cascade", config.chains), ("disaggregation", config.disaggregation)):
            if section:
                raise HeadwayError(f"{name}: is not supported: an endpoint picker sends no requests. Remove it.")
        self.app = App(loop, config, exchange_type=Pick)
        self.app.services.split = send_to_both
        self.calls: dict[Stream, None] = {}

    async def process(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Serve one call: an HTTP request from its head to the end of its answer, or until its client disconnects."""
        call = Stream(self.app.reception, self.app.services)
        self.calls[call] = None
        try:
            async for message in messages:
                for reply in await call.hear(message):
                    yield reply
                if call.over:
                    break
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of Envoy's external processing")
        finally:
            del self.calls[call]
            call.close()

    async def check(self, request: Any, context: Any) -> Any:
        status = ext_proc.NOT_SERVING if self.app.reception.draining else ext_proc.SERVING
        return ext_proc.HealthCheckResponse(status=status)

    def handlers(self) -> tuple[Any, Any]:
        process = grpc.stream_stream_rpc_method_handler(
            self.process, ext_proc.ProcessingRequest.FromString, ext_proc.ProcessingResponse.SerializeToString
        )
        check = grpc.unary_unary_rpc_method_handler(
            self.check, ext_proc.HealthCheckRequest.FromString, ext_proc.HealthCheckResponse.SerializeToString
        )
        return (
            grpc.method_handlers_generic_handler(ext_proc.SERVICE, {"Process": process}),
            grpc.method_handlers_generic_handler(ext_proc.HEALTH, {"Check": check}),
        )


def send_to_both(exchange: Exchange) -> None:
    """Reply to a disaggregated request with both engines, the prefill engine and the decode engine. A sidecar of the
    engines transfers the KV cache, so Headway does not."""
    assert exchange.backend is not None
    exchange.send_to(exchange.backend)


async def listen(picker: Picker, credentials: Any = None) -> tuple[Any, int]:
    """Start a server for the picker. Return the server and its port."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(picker.handlers())
    config = picker.app.config
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"{host}:{config.port}"
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if not port:
        tls = "" if credentials is None else ", or the TLS certificate or key is invalid"
        raise HeadwayError(f"listen: cannot listen on {address}. Another process may use the port{tls}.")
    await picker.app.run()
    await server.start()
    return server, port


def serve(
    source: Path,
    started: Callable[[str], None],
    certificate: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain."""
    if (certificate is None) != (key is None):
        raise HeadwayError("--tls-cert and --tls-key: TLS needs both. Pass the certificate and its key.")
    credentials = None
    if certificate is not None and key is not None:
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    config = Config.load(source)
    with log_to_stderr(config.log):
        asyncio.run(_serve(config, started, credentials))


async def _serve(config: Config, started: Callable[[str], None], credentials: Any) -> None:
    loop = asyncio.get_running_loop()
    picker = Picker(loop, config)
    loop.set_exception_handler(picker.app.open_files.handle)
    server, port = await listen(picker, credentials)
    ended = end_signal()
    loop.add_signal_handler(signal.SIGHUP, picker.app.reload)
    started(f"{config.host}:{port}")
    await ended.wait()
    picker.app.reception.draining = True  # the health check fails, while the server still accepts calls
    shutdown = picker.app.shutdown
    await asyncio.sleep(shutdown.lame_duck_s)
    await server.stop(shutdown.limit_s)
    await picker.app.drain(0)
