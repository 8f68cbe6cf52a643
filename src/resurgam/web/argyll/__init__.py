"""The protocol of Argyll, as a second set of routes: step services and clients that were written for it work unchanged.

Ids are cleaned instead of refused, a body may have fields that are not known, and an error is ``{"error", "status"}``.
The document of the API leaves these routes out.
"""

from resurgam.web.argyll.routes import routes

__all__ = ["routes"]
