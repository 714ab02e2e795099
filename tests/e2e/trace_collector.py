"""`Collector`: receives a server's spans over OTLP and HTTP."""

from __future__ import annotations

import queue
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages


class Collector:
    """Listens where traces are sent, and keeps the spans."""

    def __init__(self) -> None:
        self.spans: queue.Queue[Any] = queue.Queue()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received = messages.ExportTraceServiceRequest.FromString(body)
                for resource in received.resource_spans:
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            outer.spans.put((resource.resource, span))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
