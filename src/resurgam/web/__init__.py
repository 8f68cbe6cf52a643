"""The HTTP API: `app` makes an ASGI application of an engine, to serve it or to mount it in another program."""

try:
    from resurgam.web.app import app
    from resurgam.web.public_url import set_public_url
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("starlette", "uvicorn", "httpx2"):
        raise
    message = f"the HTTP API needs {error.name}; install it with: pip install 'resurgam[web]'"
    raise ModuleNotFoundError(message, name=error.name) from None

__all__ = ["app", "set_public_url"]
