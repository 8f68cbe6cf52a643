"""The version that the server tells."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("resurgam")
