"""OpenTelemetry spans of calls and solves; needs the extra `otel`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_server.jobs.reconcile.solve import OBSOLETE
from flyball_server.jobs.records import JobRecord
from flyball_server.log_setup import log_fields
from flyball_server.prometheus.process_metrics import METHODS
from flyball_server.settings import SettingsError
from flyball_wire import routes

_SERVICE = "flyball-planner"
# They come every few seconds, and say nothing about jobs.
_UNTRACED = frozenset({routes.HEALTH, routes.READY, routes.METRICS})
# Time that the last spans have to be sent at shutdown, s.
_LAST_SPANS_S = 2.0


class Traces:
    """Spans of one planner's calls and solves, sent from a thread of their own.

    Names and attributes are OpenTelemetry's semantic conventions for HTTP, and `flyball.*`. No
    span has a token, a query or a body in it.

    Args:
        exporter: exporter of ended spans; shut down by `stop`.

    Raises:
        ValueError: an `OTEL_*` variable cannot be used.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        resource = Resource.create(
            {
                "service.name": _SERVICE,
                "service.version": version("flyball"),
                # Resource.create would let ours win.
                **OTELResourceDetector().detect().attributes,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("flyball_server", version("flyball"))
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def over_otlp(cls) -> Traces:
        """Return traces that go to an OTLP collector over HTTP, as `OTEL_*` variables say.

        Raises:
            SettingsError: one of them cannot be used.
        """
        try:
            return cls(OTLPSpanExporter())
        except ValueError as error:
            raise SettingsError(f"FLYBALL_TRACES: an OTEL_* variable is invalid: {error}") from None

    def stop(self) -> None:
        """Send the last spans; those that take more than 2 s are lost."""
        # The exporter itself waits 10 s for a collector that does not answer.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_SPANS_S)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return the app with each call traced, but those about the planner's own state.

        CallLog must be around it.
        """

        async def trace_call(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in _UNTRACED:
                await app(scope, receive, send)
                return
            with self._call(scope) as span:

                async def noting_status(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        _note_status(span, message["status"])
                    await send(message)

                await app(scope, receive, noting_status)

        return trace_call

    @contextmanager
    def _call(self, scope: Scope) -> Generator[Span]:
        """Trace a call in the block; it continues the trace of a `traceparent` header."""
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in {b"traceparent", b"tracestate"}
        }
        attributes = {
            "http.request.method": method,
            "url.scheme": scope["scheme"],
            **{f"flyball.{name}": value for name, value in log_fields().items()},
        }
        with self._tracer.start_as_current_span(
            method,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_status(StatusCode.ERROR, type(error).__name__)
                raise
            finally:
                # The router has found it by now.
                route = getattr(scope.get("route"), "path", None)
                if route is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)

    @contextmanager
    def solve(self, job: JobRecord, function: Callable[..., Any]) -> Generator[None]:
        """Trace the solve of a job in the block, as part of the call that waits for it, if any.

        `flyball.outcome` is `solved`, `failed`, or `superseded` where the result is obsolete.
        """
        attributes = {
            "flyball.job": job.job_id,
            "flyball.policy": job.spec.policy,
            "flyball.num_stages": job.spec.num_stages,
            "flyball.num_microbatches": job.spec.num_microbatches,
            "code.function.name": getattr(function, "__name__", type(function).__name__),
        }
        with self._tracer.start_as_current_span(
            "solve", attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except OBSOLETE:
                span.set_attribute("flyball.outcome", "superseded")
                raise
            except Exception as error:
                span.set_attribute("flyball.outcome", "failed")
                span.set_status(StatusCode.ERROR, str(error))
                raise
            span.set_attribute("flyball.outcome", "solved")


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)
