"""Let pytest explain the asserts of modules that are no test files."""

import pytest

pytest.register_assert_rewrite("resurgam.testing.contract", "support")
