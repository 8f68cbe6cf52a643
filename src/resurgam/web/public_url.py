"""The address under which services reach the API: webhooks are below it."""

from urllib.parse import urlsplit

from resurgam.engine import Engine
from resurgam.flows.services import PUBLIC_URL


async def set_public_url(engine: Engine, url: str) -> None:
    """Tell all workers of the engine's store where an app is mounted, such as ``https://shop.example/resurgam``.

    They send it to async steps, which answer there. `resurgam serve` does this by itself.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"url must be the address of the app, such as 'https://shop.example/resurgam', got {url!r}")
    if parts.username is not None:
        raise ValueError("url must not contain a user or a password: every async step gets it")
    await engine.store.values.put(PUBLIC_URL, url.rstrip("/").encode())
