"""Types and the names they are recorded under: a script is known to other processes by the name of its file."""

import sys
from types import ModuleType

import pytest

from resurgam.core.failure import capture, rebuild
from resurgam.core.retry import RetryPolicy
from resurgam.core.typename import find_type, type_name


class Spec:
    def __init__(self, name: str) -> None:
        self.name = name


def module(name: str, file: str | None = None, spec: Spec | None = None) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = spec  # type: ignore[assignment]
    if file is not None:
        made.__file__ = file
    exec("class Sold(Exception): pass", made.__dict__)
    made.Sold.__module__ = name
    return made


@pytest.fixture
def imported(monkeypatch):
    def put(made: ModuleType, name: str = "") -> ModuleType:
        monkeypatch.setitem(sys.modules, name or made.__name__, made)
        return made

    return put


def test_types_are_named_by_module_and_qualified_name():
    assert type_name(KeyError) == "builtins.KeyError"
    assert find_type("builtins.KeyError") is KeyError
    assert find_type("builtins.Missing") is None
    assert find_type("no_such_module.X") is None


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
@pytest.mark.parametrize(
    ("file", "spec", "known"),
    [
        ("/srv/shop.py", None, "shop.Sold"),
        ("/srv/app/shop.py", Spec("app.shop"), "app.shop.Sold"),
        (None, None, "__main__.Sold"),
        ("<stdin>", None, "__main__.Sold"),
    ],
)
def test_a_type_of_a_script_is_named_as_others_import_it(imported, name, file, spec, known):
    main = imported(module(name, file, spec))
    assert type_name(main.Sold) == known
    assert RetryPolicy(non_retryable=[main.Sold]).non_retryable_names() == (known,)


@pytest.mark.parametrize("recorded", ["shop.Sold", "app.shop.Sold", "__main__.Sold"])
def test_a_script_finds_its_own_class_under_its_importable_name(imported, recorded):
    main = imported(module("__main__", "/srv/app/shop.py"))
    assert find_type(recorded) is main.Sold


def test_an_error_raised_in_a_script_is_rebuilt_where_its_module_is_imported(imported):
    main = imported(module("__main__", "/srv/shop.py"))
    failure = capture(main.Sold("out"))
    imported(module("__main__", "/usr/bin/resurgam"))
    shop = imported(module("shop", "/srv/shop.py", Spec("shop")))
    assert type(rebuild(failure)) is shop.Sold


def test_a_script_in_the_same_folder_is_not_confused_with_another(imported):
    imported(module("__main__", "/srv/app/other.py"))
    assert find_type("app.shop.Sold") is None
