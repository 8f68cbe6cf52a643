"""A library of small functions, with which tests of the connection can see what a server was told."""

from pathlib import Path

import pytest

from resurgam.store.redis import link as links
from resurgam.store.redis.library import Library, join

FRAME = Path(links.__file__).with_name("scripts") / "frame.lua"

ECHO = """
local function echo(call, part)
  if part == 'fail' then error('this part fails') end
  note(call, 'work', 'default')
  return part
end
"""
QUIETLY = """
local function quietly(call, part)
  return part
end
"""
TELL = """
local function tell(call, part)
  return { tostring(call.now), tostring(call.lease), call.owner, call.prefix }
end
"""
COUNT = """
local function count_batch(call, parts)
  local total = redis.call('INCRBY', call.prefix .. 'count', #parts)
  local answers = {}
  for number = 1, #parts do answers[number] = total end
  return answers
end
"""
NOTHING = """
local function nothing(call, part)
end
"""
PUBLISH = """
local function publish(call, part)
  return redis.call('PUBLISH', part[1], part[2])
end
"""
SPIN = """
local function spin(call, part)
  while true do end
end
"""
REAP = """
local function reap(call, part)
  return {}
end
"""
REAP_LIST = """
local function reap_list(call, part)
  return false
end
"""


def small_library() -> Library:
    """Return the library."""
    verbs = {
        "echo": ECHO,
        "quietly": QUIETLY,
        "tell": TELL,
        "count": COUNT,
        "nothing": NOTHING,
        "publish": PUBLISH,
        "spin": SPIN,
        "reap": REAP,
        "reap_list": REAP_LIST,
    }
    return join(FRAME.read_text(), {}, verbs)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Have links load the small library instead of the real one."""
    made = small_library()
    monkeypatch.setattr(links, "library", lambda: made)
    return made
