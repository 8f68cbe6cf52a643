"""Lets pytest explain the asserts of the suite, which stand in a package and not in a test file."""

import pytest

pytest.register_assert_rewrite("resurgam.testing.contract")
