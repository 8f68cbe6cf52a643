"""The table of calls that workflow code may not make, with remedies; used by `resurgam.lint` and at run time.

Names are written as Python resolves them: ``time.time``, ``builtins.open``. A name that ends in ``.*`` covers
everything below it; ``()`` denotes an instance of the preceding class: ``pathlib.Path().read_text``.
"""

import re
from typing import Final

import msgspec

_ACTIVITY: Final = "put it into an activity and call ctx.activity(...), or for a short side effect ctx.run(...)"


RUN_INLINE: Final = frozenset({"agents", "langchain_core", "langgraph", "pydantic_ai"})
"""Agent frameworks, by package: what they give to an executor runs at once, in the workflow's own thread.

They use executors only so that a synchronous function of the user does not block other runs of a server. An executor of
the user's own code is refused, and so is that of any other package, such as aiofiles.
"""


class Rule(msgspec.Struct, frozen=True):
    """One kind of mistake: its code, the word that allows it on a line, the reason and the remedy."""

    code: str
    word: str
    reason: str
    remedy: str


CLOCK: Final = Rule("RS101", "clock", "the time differs on replay", "use ctx.now()")
SLEEP: Final = Rule("RS102", "sleep", "it blocks every workflow of this worker", "await ctx.sleep(...)")
RANDOM: Final = Rule("RS103", "random", "the numbers differ on replay", "use ctx.random")
UUID: Final = Rule("RS104", "uuid", "the id differs on replay", "use ctx.uuid4()")
IO: Final = Rule("RS105", "io", "the outside world differs on replay, and effects are repeated", _ACTIVITY)
OUTPUT: Final = Rule("RS106", "output", "it is repeated on every replay", "use ctx.logger")
THREADS: Final = Rule("RS107", "threads", "code outside the workflow's event loop cannot be replayed", _ACTIVITY)
ENVIRONMENT: Final = Rule(
    "RS108", "environment", "it differs between processes", "pass it as an argument, or read it by ctx.run(...)"
)
IDENTITY: Final = Rule("RS109", "identity", "it differs between processes", "use a key of your own")
DIRECT: Final = Rule("RS110", "direct", "an activity called directly is not recorded", "call it by ctx.activity(...)")
SETS: Final = Rule(
    "RS201", "sets", "the order of a set differs between processes", "iterate over sorted(...), or a list"
)
UNAWAITED: Final = Rule(
    "RS202", "unawaited", "its result or failure is lost", "await it, or pass it to asyncio.gather(...)"
)
OUTER: Final = Rule(
    "RS203",
    "outer",
    "iterations of a loop are forgotten and not run again, so the change is lost on replay",
    "pass it in the state, by Continue(state), or store it by ctx.set(...)",
)
SHARED: Final = Rule(
    "RS204",
    "shared",
    "all workflows of a process share it, and replay changes it again",
    "keep it in a local variable, or store it by ctx.set(...)",
)

RULES: Final = {
    rule.code: rule
    for rule in (
        *(CLOCK, SLEEP, RANDOM, UUID, IO, OUTPUT, THREADS, ENVIRONMENT, IDENTITY, DIRECT),
        *(SETS, UNAWAITED, OUTER, SHARED),
    )
}
SEEN_IN_SOURCE_ONLY: Final = frozenset({SETS.code, OUTER.code, SHARED.code, DIRECT.code})
"""Rules that cannot be checked at run time."""


def _under(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names.split())


_HTTP: Final = "get post put patch delete head options request"
_PATH: Final = (
    "read_text read_bytes write_text write_bytes open exists is_file is_dir is_symlink stat lstat iterdir glob rglob "
    "mkdir rmdir touch unlink rename replace resolve chmod symlink_to hardlink_to samefile owner group expanduser walk"
)
_LOG: Final = "debug info warning error exception critical log"

_CALLS: Final[dict[Rule, tuple[str, ...]]] = {
    CLOCK: (
        *_under("time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time thread_time"),
        *_under("time", "process_time_ns thread_time_ns clock_gettime clock_gettime_ns localtime gmtime ctime"),
        *_under("time", "strftime asctime"),
        *_under("datetime.datetime", "now utcnow today"),
        "datetime.date.today",
    ),
    SLEEP: ("time.sleep",),
    RANDOM: ("random.*", "secrets.*", "os.urandom", "os.getrandom"),
    UUID: ("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "uuid.getnode"),
    IO: (
        *_under("builtins", "open input"),
        *_under("io", "open FileIO"),
        *_under("os", "open read write close stat lstat access listdir scandir walk remove unlink rename replace"),
        *_under("os", "mkdir makedirs rmdir removedirs chmod chown truncate link symlink readlink utime pipe sendfile"),
        *_under("os.path", "exists lexists isfile isdir islink getsize getmtime getatime getctime realpath samefile"),
        *_under("pathlib.Path()", _PATH),
        *("shutil.*", "tempfile.*", "glob.glob", "glob.iglob"),
        *_under("socket", "socket create_connection create_server socketpair getaddrinfo gethostbyname fromfd"),
        *_under("subprocess", "run Popen call check_call check_output getoutput getstatusoutput"),
        *_under("os", "system popen fork forkpty execv execve execl execvp spawnl spawnv posix_spawn kill killpg"),
        *_under("asyncio", "open_connection open_unix_connection start_server start_unix_server"),
        *_under("asyncio", "create_subprocess_exec create_subprocess_shell"),
        *("urllib.request.urlopen", "urllib.request.urlretrieve", "http.client.HTTPConnection"),
        *("http.client.HTTPSConnection", "ftplib.FTP", "smtplib.SMTP", "smtplib.SMTP_SSL", "imaplib.IMAP4"),
        *_under("requests", f"{_HTTP} Session"),
        *_under("httpx", f"{_HTTP} stream Client AsyncClient"),
        *("urllib3.PoolManager", "urllib3.request", "aiohttp.ClientSession", "aiohttp.request", "aiofiles.open"),
        *("sqlite3.connect", "psycopg.connect", "psycopg.AsyncConnection.connect", "psycopg2.connect"),
        *("asyncpg.connect", "asyncpg.create_pool", "aiosqlite.connect", "redis.Redis", "redis.from_url"),
        *("redis.asyncio.Redis", "redis.asyncio.from_url", "pymongo.MongoClient", "boto3.client", "boto3.resource"),
    ),
    OUTPUT: (
        *("builtins.print", "sys.stdout.write", "sys.stderr.write", "pprint.pprint", "pprint.pp"),
        *_under("logging", _LOG),
        *_under("logging.getLogger()", _LOG),
    ),
    THREADS: (
        *("threading.Thread", "threading.Timer", "_thread.start_new_thread", "asyncio.to_thread", "asyncio.run"),
        *("concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor", "multiprocessing.*"),
        *("asyncio.run_coroutine_threadsafe", "asyncio.get_running_loop().run_in_executor"),
        *("asyncio.get_event_loop().run_in_executor", "asyncio.get_running_loop().call_soon_threadsafe"),
    ),
    ENVIRONMENT: (
        *_under("os", "getenv putenv unsetenv getpid getppid getcwd getcwdb uname cpu_count getlogin getuid chdir"),
        *_under("os", "getloadavg times"),
        *("pathlib.Path.cwd", "pathlib.Path.home", "socket.gethostname", "socket.getfqdn", "getpass.getuser"),
        *_under("platform", "node platform system machine uname python_version"),
    ),
    IDENTITY: ("builtins.id", "builtins.hash"),
    SETS: ("asyncio.all_tasks",),
}

CALLS: Final[dict[str, Rule]] = {name: rule for rule, names in _CALLS.items() for name in names}
"""Functions and classes that workflow code may not call."""

NEEDS: Final[dict[str, int]] = {
    "random.Random": 1,
    "time.localtime": 1,
    "time.gmtime": 1,
    "time.ctime": 1,
    "time.asctime": 1,
    "time.strftime": 2,
}
"""The number of arguments that makes a call pure; with fewer it reads the clock or draws random numbers."""

VALUES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("os.environ", "os.environb", "sys.argv"), ENVIRONMENT),
    "sys.stdin": IO,
}
"""Values that workflow code may not read."""

HOLDERS: Final = frozenset(
    {
        *("random.Random", "random.SystemRandom", "requests.Session", "httpx.Client", "httpx.AsyncClient"),
        *("urllib3.PoolManager", "aiohttp.ClientSession", "sqlite3.connect", "psycopg.connect", "psycopg2.connect"),
        *("redis.Redis", "redis.from_url", "redis.asyncio.Redis", "redis.asyncio.from_url", "pymongo.MongoClient"),
        *("boto3.client", "boto3.resource", "concurrent.futures.ThreadPoolExecutor"),
        "concurrent.futures.ProcessPoolExecutor",
    }
)
"""Classes whose instances a module may hold, but on which a workflow may not call methods."""

_COMMENT: Final = re.compile(r"#\s*resurgam:\s*allow\s+([\w\s,]+)")


def find(name: str) -> Rule | None:
    """Return the rule that forbids a call of this name."""
    found = CALLS.get(name)
    while found is None and "." in name and not name.endswith(")"):
        name = name.rpartition(".")[0]
        found = CALLS.get(f"{name}.*")
    return found


def allows(line: str, rule: Rule) -> bool:
    """Whether a source line has a comment that allows the rule, by its word or its code."""
    found = _COMMENT.search(line)
    return found is not None and not {rule.word, rule.code}.isdisjoint(re.split(r"[\s,]+", found[1]))
