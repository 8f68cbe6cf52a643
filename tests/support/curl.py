"""A stand-in for curl, as far as docs/how-to/http.md uses it: ``python curl.py [--json JSON or @FILE] [-N] URL``."""

import http.client
import sys
from pathlib import Path
from urllib.parse import urlsplit


def main():
    *options, url = sys.argv[1:]
    parts = urlsplit(url)
    body = options[options.index("--json") + 1] if "--json" in options else None
    if body is not None and body.startswith("@"):
        body = Path(body[1:]).read_text()
    headers = {} if body is None else {"Content-Type": "application/json"}
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET" if body is None else "POST", f"{parts.path}?{parts.query}", body, headers)
    sys.stdout.write(connection.getresponse().read().decode())


if __name__ == "__main__":
    main()
