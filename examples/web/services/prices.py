"""A step service with nothing but the standard library: it knows prices.

Watch for: a problem document (`application/problem+json`) tells the engine not to call again; its detail becomes the error
of the step.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CENTS = {"book": 1200, "piano": 490_000}


class Prices(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        """Say that the service works."""
        self.answer(200, {"status": "healthy"})

    def do_POST(self) -> None:
        """Look up the price of an item."""
        item = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["item"]
        if item in CENTS:
            self.answer(200, {"cents": CENTS[item]})
        else:
            self.answer(422, {"status": 422, "detail": f"{item} has no price"}, "application/problem+json")

    def answer(self, status: int, value: object, media_type: str = "application/json") -> None:
        """Send a value as JSON."""
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Prices)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
