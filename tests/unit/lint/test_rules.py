"""Each rule finds what it is for, at its line, and not what merely looks like it.

A program says itself what is to be found: ``#! RS101`` ends the line on which it is. All others must be silent.
"""

import re
from textwrap import dedent, indent

import pytest

from resurgam.lint.check import check_source
from resurgam.runtime.loop.forbidden import RULES

PRELUDE = """\
import asyncio, collections, concurrent.futures, functools, httpx, itertools, json, logging, multiprocessing, os
import pathlib, random, requests, secrets, socket, sqlite3, subprocess, sys, threading, time, uuid
import datetime as dt
import time as t
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from os import environ, getenv
from pathlib import Path
from random import choice
from time import monotonic as tick, sleep
from typing import Optional
from uuid import UUID, uuid4, uuid5
from resurgam import Context, Continue, Registry, activity, workflow

@activity
def charge(cents: int) -> set[str]:
    print(time.time())
    return {"a"}

"""

IN_A_WORKFLOW = {
    # Clocks.
    "time": "time.time()  #! RS101",
    "time under another name": "t.time_ns()  #! RS101",
    "a function of time under another name": "tick()  #! RS101",
    "datetime.now": "datetime.now()  #! RS101",
    "datetime.now with a zone": "dt.datetime.now(dt.UTC)  #! RS101",
    "datetime.utcnow": "dt.datetime.utcnow()  #! RS101",
    "date.today": "date.today()  #! RS101",
    "localtime of now": "time.localtime()  #! RS101",
    "localtime of a moment": "time.localtime(3)",
    "strftime of now": "time.strftime('%H')  #! RS101",
    "strftime of a moment": "time.strftime('%H', time.gmtime(3))",
    "an alias": "now = time.time\nnow()  #! RS101",
    "an argument of a durable call": "await ctx.activity(charge, time.time())  #! RS101",
    "the workflow's own time": "ctx.now()\nctx.now().date()\ndatetime.fromtimestamp(3, dt.UTC)\ndatetime(2026, 1, 1)",
    "a variable that is named like a module": "time = ctx.now()\ntime.time()",
    "a parameter of a lambda that is named like a module": "await ctx.run(lambda time: time.time(), 1)",
    "sleeping for real": "time.sleep(1)  #! RS102\nsleep(1)  #! RS102",
    "durable sleeps": "await asyncio.sleep(1)\nawait ctx.sleep(1)\nawait ctx.sleep_until(ctx.now())",
    "a timeout": "async with asyncio.timeout(3):\n    await ctx.listen('go')",
    # Chance.
    "random": "random.random()  #! RS103",
    "a function of random": "choice([1, 2])  #! RS103",
    "an own source of chance": "random.Random()  #! RS103",
    "a seeded source of chance": "random.Random(3).random()\nseeded = random.Random('x')\nseeded.choice([1])",
    "secrets": "secrets.token_hex()  #! RS103",
    "urandom": "os.urandom(8)  #! RS103",
    "the workflow's own chance": "ctx.random.random()\nctx.random.choice([1])",
    "a chance of another workflow's name": "random = ctx.random\nrandom.random()",
    # Ids.
    "uuid4": "uuid4()  #! RS104\nuuid.uuid4().hex  #! RS104",
    "uuid1": "uuid.uuid1()  #! RS104",
    "ids that are not random": "uuid5(uuid.NAMESPACE_DNS, 'x')\nUUID(int=3)\nctx.uuid4()",
    # I/O.
    "open": "with open('x') as file:  #! RS105\n    file.read()",
    "input": "input()  #! RS105",
    "a path": "Path('x').read_text()  #! RS105",
    "a path in a variable": "where = Path('x') / 'y'\nwhere.write_text('')  #! RS105",
    "the folder of a path": "Path('x').parent.mkdir()  #! RS105",
    "paths that are only names": "Path('x').with_suffix('.y').name\n(Path('x') / 'y').as_posix()",
    "files of the system": "os.listdir('.')  #! RS105\nos.path.exists('x')  #! RS105",
    "names of files": "os.path.join('a', 'b')\nos.path.basename('a')",
    "http": "requests.get('http://x')  #! RS105\nhttpx.AsyncClient()  #! RS105",
    "names of http": "httpx.URL('http://x')\nhttpx.Timeout(3)",
    "sockets": "socket.create_connection(('x', 1))  #! RS105",
    "processes": "subprocess.run(['x'])  #! RS105\nos.system('x')  #! RS105",
    "processes by asyncio": "await asyncio.create_subprocess_exec('x')  #! RS105",
    "databases": "sqlite3.connect('x')  #! RS105",
    "standard input": "sys.stdin.read()  #! RS105",
    "an object of the user's with such a method": "json.loads('1')\norder.open()\norder.read_text()",
    # Output.
    "print": "print('x')  #! RS106",
    "logging": "logging.info('x')  #! RS106",
    "a logger": "logging.getLogger('x').warning('x')  #! RS106",
    "the workflow's logger": "ctx.logger.info('x')",
    # Threads.
    "a thread": "threading.Thread(target=int)  #! RS107",
    "an executor": "concurrent.futures.ThreadPoolExecutor(1)  #! RS107",
    "to_thread": "await asyncio.to_thread(int)  #! RS107",
    "run_in_executor": "await asyncio.get_running_loop().run_in_executor(None, int)  #! RS107",
    "run_in_executor of a variable": "loop = asyncio.get_running_loop()\nawait loop.run_in_executor(None, int)  #! RS107",
    "multiprocessing": "multiprocessing.Process(target=int)  #! RS107",
    "what asyncio offers": "asyncio.Lock()\nasyncio.Queue()\nawait asyncio.gather(ctx.sleep(1), ctx.sleep(2))",
    # The environment.
    "environ": "os.environ['X']  #! RS108",
    "environ.get": "environ.get('X')  #! RS108",
    "getenv": "getenv('X')  #! RS108",
    "argv": "sys.argv[1]  #! RS108",
    "the process": "os.getpid()  #! RS108",
    "the folder": "Path.cwd()  #! RS108",
    "constants of the system": "os.sep\nsys.maxsize",
    # Identity.
    "id": "id(order)  #! RS109",
    "hash": "hash('x')  #! RS109",
    "ids of the user's": "order.id\norder.hash()",
    # Activities.
    "an activity called directly": "charge(3)  #! RS110",
    "an activity": "await ctx.activity(charge, 3)\ncharge.options(timeout=3)",
    "an activity's name": "await ctx.activity('charge', 3)",
    # Side effects.
    "an operation": "await ctx.run(time.time)\nawait ctx.run(lambda: open('x').read())\nawait ctx.run(charge, 3)",
    # Sets.
    "a set": "for x in {1, 2}:  #! RS201\n    pass",
    "a call of set": "for x in set(order):  #! RS201\n    pass",
    "a frozenset": "list(frozenset(order))  #! RS201",
    "a set in a variable": "found = set()\nfound.add(3)\nfor x in found:  #! RS201\n    pass",
    "a set that grows": "found = {1}\nfound |= {2}\nfound = found | {3}\nlist(found)  #! RS201",
    "a parameter": "for x in tags:  #! RS201\n    pass",
    "a parameter that may be None": "for x in maybe:  #! RS201\n    pass",
    "an optional parameter": "list(perhaps)  #! RS201",
    "an abstract set": "tuple(abstract)  #! RS201",
    "a comprehension": "[x for x in tags]  #! RS201",
    "a dict of a set": "{x: 1 for x in tags}  #! RS201",
    "a generator": "asyncio.gather(*(ctx.sleep(x) for x in tags))  #! RS201",
    "unpacking into a call": "asyncio.gather(*tags)  #! RS201",
    "unpacking into a list": "[*tags]  #! RS201",
    "unpacking into names": "a, b = tags  #! RS201",
    "join": "', '.join(tags)  #! RS201",
    "enumerate": "for number, x in enumerate(tags):  #! RS201\n    pass",
    "pop": "tags.pop()  #! RS201",
    "next": "next(iter(tags))  #! RS201",
    "as text": "f'{tags}'  #! RS201\nstr(tags)  #! RS201",
    "a difference of keys": "for x in order.keys() - {'a'}:  #! RS201\n    pass",
    "a union": "for x in tags.union({'a'}):  #! RS201\n    pass",
    "what an activity returns": "for x in await ctx.activity(charge, 1):  #! RS201\n    pass",
    "all tasks": "asyncio.all_tasks()  #! RS201",
    "a set in order": "for x in sorted(tags):\n    pass",
    "a comprehension in order": "sorted(x for x in tags)\nsorted([f'{x}' for x in tags])\nsorted(map(str, tags))",
    "what does not mind the order": "len(tags)\n'a' in tags\nsum(x for x in {1, 2})\nany(x for x in tags)\nmax(tags)\nmin(tags)",
    "from set to set": "{x for x in tags}\nset(x for x in tags)\ntags | {'a'}\n{*tags}\nfrozenset(tags)\nset(list(tags))",
    "no set": "for x in ['a']:\n    pass\nfor x in {'a': 1}:\n    pass\nfor x in order.keys():\n    pass\nlist(order)",
    "sometimes a set, sometimes not": "found = set()\nfound = [1]\nfor x in found:\n    pass",
    "a name that is taken": "def set(x): return [x]\nfor x in set(3):\n    pass",
    "tasks, which are hashed by their place": "tasks = {asyncio.create_task(other(ctx)), ctx.sleep(1)}\nawait asyncio.gather(*tasks)",
    "tasks of a comprehension": "tasks = {asyncio.create_task(other(ctx)) for _ in order}\nfor task in tasks:\n    task.cancel()",
    "what asyncio.wait gives": "done, _ = await asyncio.wait([ctx.sleep(1)])\nfor task in done:\n    task.result()",
    "either of two sets": "list(tags if order else {1})  #! RS201",
    "a set or a list": "list(tags if order else [1])",
    "None or a set": "found = None\nfound = {1}\nlist(found)  #! RS201",
    "a set of a walrus": "if found := {1}:\n    list(found)  #! RS201",
    "what a handler of errors, a pattern and a loop bind": "found = {1}\ntry:\n    pass\nexcept ValueError as found:\n    list(found)",
    "what a pattern binds": "found = {1}\nmatch order:\n    case [*found] | {'a': found}:\n        list(found)",
    "pop of a list": "found = [1]\nfound.pop()\norder.pop()",
    # Durable calls that are not awaited.
    "an activity without await": "ctx.activity(charge, 3)  #! RS202",
    "a sleep without await": "ctx.sleep(3)  #! RS202",
    "a version without await": "ctx.v(2).activity(charge, 3)  #! RS202",
    "a child without await": "ctx.workflow('child')  #! RS202",
    "a flow without await": "ctx.flow(['goal'])  #! RS202",
    "a variable that is never read": "later = ctx.activity(charge, 3)  #! RS202",
    "an annotated variable that is never read": "later: object = ctx.activity(charge, 3)  #! RS202",
    "a future for its value": "if ctx.listen('go'):  #! RS202\n    pass",
    "a future for its value, negated": "while not ctx.listen('go'):  #! RS202\n    pass",
    "a future compared": "ctx.listen('go') == 3  #! RS202",
    "a future as text": "f\"{ctx.listen('go')}\"  #! RS202",
    "a future among others": "if order and ctx.listen('go'):  #! RS202\n    pass",
    "a future returned": "return ctx.sleep(3)  #! RS202",
    "a coroutine without await": "other(ctx)  #! RS202",
    "a saga's step": "async with ctx.saga() as saga:\n    saga.step(charge, 3)  #! RS202",
    "a saga's step that is awaited": "async with ctx.saga() as saga:\n    await saga.step(charge, 3, undo=charge)",
    "awaited": "await ctx.sleep(3)\nreturn await ctx.activity(charge, 3)",
    "awaited later": "later = ctx.activity(charge, 3)\nawait ctx.sleep(1)\nawait later",
    "gathered": "await asyncio.gather(ctx.sleep(1), ctx.sleep(2))\nfound = [ctx.sleep(1)]\nawait asyncio.gather(*found)",
    "in a task group": "async with asyncio.TaskGroup() as group:\n    group.create_task(ctx.sleep(1))",
    "called off": "later = ctx.activity(charge, 3)\nlater.cancel()",
    "read by a nested function": "later = ctx.sleep(3)\nasync def wait():\n    await later\nawait wait()",
    "meant": "_unused = ctx.activity(charge, 3)",
    "a child that goes its own way": "ctx.workflow('child', detach=True)",
    "a flow that goes its own way": "ctx.flow(['goal'], detach=True)",
    "verbs that return plain values": "ctx.set('a', 1)\nctx.clear('a')\nctx.get('a')\nctx.publish('topic', 1)",
    "verbs of something else": "order.activity(3)\norder.sleep(1)",
    # What the module shares.
    "a change of a list of the module": "SEEN.append(3)  #! RS204",
    "a change of a dict of the module": "KNOWN['a'] = 3  #! RS204\ndel KNOWN['a']  #! RS204",
    "a change of an object of the module": "REGISTRY.name = 3  #! RS204",
    "a counter of the module": "next(NUMBERS)  #! RS204",
    "a variable of the module": "global TOTAL\nTOTAL += 1  #! RS204",
    "reading what the module has": "SEEN[0]\nKNOWN.get('a')\nlen(SEEN)\nTOTAL + 1",
    "a local variable of that name": "SEEN = []\nSEEN.append(3)\nTOTAL = 3",
    "a method that is named like a change": "REGISTRY.update(3)",
    "what the module holds": "CLIENT.get('x')  #! RS105\nCHANCE.random()  #! RS103\nLOGGER.info('x')  #! RS106",
    "constants that were read at import": "CONFIG.splitlines()\nSTARTED.isoformat()",
}  # fmt: skip

MODULE = """\
SEEN = []
KNOWN = {}
NUMBERS = itertools.count()
TOTAL = 0
REGISTRY = Registry()
CLIENT = httpx.Client()
CHANCE = random.Random(3)
LOGGER = logging.getLogger(__name__)
CONFIG = open("config").read()
STARTED = datetime.now()

async def other(ctx: Context) -> None:
    await ctx.sleep(1)

@workflow
async def order_flow(ctx: Context, order, tags: set[str], maybe: "set[str] | None", perhaps: Optional[frozenset[str]], abstract: AbstractSet[str]):
"""

WHOLE = {
    "workflows are told by their decorator": """
        import resurgam as rs
        from resurgam import workflow as flow
        registry = rs.Registry()

        @rs.workflow
        async def one(ctx): time.time()  #! RS101
        @rs.workflow(name="x")
        async def two(ctx): time.time()  #! RS101
        @registry.workflow
        async def three(ctx): time.time()  #! RS101
        @registry.workflow(queue="x")
        async def four(ctx): time.time()  #! RS101
        @flow
        async def five(ctx): time.time()  #! RS101
        async def six(ctx): time.time()  #! RS101
        workflow(six)
        async def seven(ctx): time.time()  #! RS101
        registry.workflow(name="x")(seven)
        def around():
            @rs.workflow
            async def eight(ctx): time.time()  #! RS101
        async def nine(ctx): time.time()
        @functools.cache
        def ten(): time.time()
    """,
    "a registry of another module is known too": """
        from shop.app import registry

        @registry.workflow
        async def one(ctx): time.time()  #! RS101
        @registry.activity
        async def two(): time.time()
    """,
    "a decorator of the module's own that is named so is its own": """
        def workflow(function): return function

        @workflow
        async def one(ctx): time.time()
    """,
    "calls are followed through the module": """
        def inner(): return time.time()  #! RS101
        def helper(): return inner()
        def unused(): return time.time()

        @workflow
        async def flow(ctx: Context): helper()
    """,
    "calls that go round in a circle end": """
        def ping(): pong()
        def pong():
            ping()
            uuid4()  #! RS104

        @workflow
        async def flow(ctx: Context): ping()
    """,
    "methods are followed, and what a class does when it is made": """
        class Base:
            def inherited(self): return time.time()  #! RS101
        class Order(Base):
            def __init__(self): self.at = time.time()  #! RS101
            def total(self): return self.share()
            def share(self): return random.random()  #! RS103
            def unused(self): return random.random()
        def of(order: Order): order.inherited()

        @workflow
        async def flow(ctx: Context):
            order = Order()
            order.total()
            of(order)
    """,
    "defaults of a dataclass that are not given": """
        def at(): return time.time()  #! RS101

        @dataclass
        class Order:
            name: str
            id: str = field(default_factory=uuid4)  #! RS104
            at: float = field(default_factory=at)
            tags: list[str] = field(default_factory=list)

        @dataclass
        class Given:
            id: str = field(default_factory=uuid4)

        @workflow
        async def flow(ctx: Context):
            Order("x")
            Given("x")
            Given(id="x")
            Given(**{"id": "x"})
    """,
    "the fields of a class are known by their types": """
        @dataclass
        class Order:
            tags: set[str]
            lines: list[str]

        @workflow
        async def flow(ctx: Context, order: Order):
            for tag in order.tags: pass  #! RS201
            for line in order.lines: pass
    """,
    "branches are workflow code": """
        async def strand(c, x): c.sleep(time.time())  #! RS101, RS202
        async def each(c, x): uuid4()  #! RS104

        @workflow
        async def flow(ctx: Context):
            await ctx.branch(strand, 1)
            await ctx.map(each, [1], key=str)
            await ctx.map(charge, [1], key=str)
            await ctx.until(lambda: time.time() > 3)  #! RS101
    """,
    "items of a map come in the order of their set": """
        @workflow
        async def flow(ctx: Context, tags: set[str]):
            await ctx.map(charge, tags, key=str)  #! RS201
            await ctx.map(charge, sorted(tags), key=str)
    """,
    "handlers are workflow code": """
        @workflow
        async def flow(ctx: Context):
            @ctx.on_signal("x")
            async def hear(value): time.time()  #! RS101
            @ctx.on_update("y", validator=lambda value: uuid4())  #! RS104
            async def change(value): pass
            async def unused(): time.time()
            await ctx.sleep(1)
    """,
    "functions that are given to functions which call them": """
        def key(x): return random.random()  #! RS103
        def read(x): return open(x)

        @workflow
        async def flow(ctx: Context, items: list[str]):
            sorted(items, key=key)
            sorted(items, key=lambda x: time.time())  #! RS101
            list(map(key, items))
            await ctx.run(read, "x")
            await ctx.run(functools.partial(read, "x"))
    """,
    "an activity is free, and a workflow that is called is not": """
        @activity
        async def act(): helper()
        def helper(): time.time()

        @workflow
        async def child(ctx: Context): uuid4()  #! RS104
        @workflow
        async def flow(ctx: Context):
            await ctx.activity(act)
            await child(ctx)
    """,
    "a lambda in a variable": """
        @workflow
        async def flow(ctx: Context):
            now = lambda: time.time()  #! RS101
            later = lambda: uuid4()
            now()
            await ctx.run(later)
    """,
    "the body of a loop changes nothing outside of it": """
        @workflow
        async def flow(ctx: Context):
            total, seen, later = 0, [], {}
            async def body(inner, state):
                nonlocal total
                total += 1  #! RS203
                seen.append(state)  #! RS203
                later["x"] = state  #! RS203
                mine = []
                mine.append(state)
                state.append(3)
                ctx.set("x", 1)
                inner.clear("x")
                bump()
                return Continue(state)
            def bump(): seen.clear()  #! RS203
            def harmless(): seen.clear()
            harmless()
            seen.append(1)
            await ctx.loop(body, [])
    """,
    "a variable that is bound after the body": """
        @workflow
        async def flow(ctx: Context):
            async def body(ctx, state):
                nonlocal total
                total = 3  #! RS203
            total = 0
            await ctx.loop(body=body)
    """,
    "a loop that never forgets may change what it likes": """
        @workflow
        async def flow(ctx: Context):
            seen = []
            async def body(ctx, state): seen.append(state)
            await ctx.loop(body, forget_every=None)
    """,
    "a loop within a loop that never forgets": """
        @workflow
        async def flow(ctx: Context):
            seen = []
            async def body(ctx, state):
                async def inner(ctx, state): seen.append(state)  #! RS203
                await ctx.loop(inner, forget_every=None)
            await ctx.loop(body, forget_every=20)
    """,
    "a body of the module's own, and a partial one": """
        async def body(c, state):
            time.time()  #! RS101
            c.activity(charge)  #! RS202
        async def other(c, state): uuid4()  #! RS104

        @workflow
        async def flow(ctx: Context):
            await ctx.loop(body)
            await ctx.loop(functools.partial(other))
    """,
    "a branch changes what it likes": """
        @workflow
        async def flow(ctx: Context):
            seen = []
            async def strand(ctx): seen.append(1)
            await ctx.branch(strand)
    """,
    "a coroutine under a decorator is what that makes of it": """
        @functools.partial
        async def helper(): pass

        @workflow
        async def flow(ctx: Context): helper()
    """,
    "annotations that cannot be read": """
        def helper(x: "set[", y: "Order", *z: set[str], **w: set[str]): list(x), list(y), list(z), list(w)

        @workflow
        async def flow(ctx: Context): helper()
    """,
    "sets of tasks by annotation": """
        @workflow
        async def flow(ctx: Context):
            tasks: set[asyncio.Task[None]] = set()
            names: set[str] = set()
            list(tasks)
            list(names)  #! RS201
    """,
    "names of a class are not seen in its methods": """
        class Order:
            tags = {1}
            def lists(self, tags): return list(tags)
            def own(self): return list(self.tags)  #! RS201

        @workflow
        async def flow(ctx: Context, order: Order):
            order.lists([])
            order.own()
    """,
    "a context of another name": """
        @workflow
        async def flow(c): c.sleep(1)  #! RS202
        async def helper(context: "Context"): context.sleep(1)  #! RS202
        @workflow
        async def calls(ctx): await helper(ctx)
    """,
    "a comment allows it by word or code": """
        @workflow
        async def flow(ctx: Context):
            time.time()  # resurgam: allow clock
            time.time()  # resurgam: allow RS101
            uuid4(), time.time()  # resurgam: allow uuid, clock
            # resurgam: allow clock
            time.time()
            print(  # resurgam: allow output
                "x"
            )
            print(
                "x"
            )  # resurgam: allow output
            time.time()  #! RS101 # resurgam: allow uuid
            time.time()  #! RS101 # resurgam: allow
            "resurgam: allow clock"
            time.time()  #! RS101
    """,
    "a comment beside other code is for that line only": """
        @workflow
        async def flow(ctx: Context):
            time.time()  # resurgam: allow clock
            time.time()  #! RS101
    """,
    "imports in a function, and names that only look like them": """
        class time2:
            @staticmethod
            def time(): return 3

        @workflow
        async def flow(ctx: Context):
            import time as clock
            from os import environ as env
            clock.time()  #! RS101
            env["x"]  #! RS108
            time2.time()
            for random in [1]: random.random()
    """,
}  # fmt: skip


def marked(program: str) -> list[tuple[int, str]]:
    """Return what a program says that is to be found in it."""
    lines = enumerate(program.splitlines(), 1)
    found = [(number, code) for number, line in lines for mark in re.findall(r"#!([^#]*)", line) for code in re.findall(r"RS\d+", mark)]  # fmt: skip
    return sorted(found)


def found_in(program: str) -> list[tuple[int, str]]:
    return sorted((finding.line, finding.rule.code) for finding in check_source(program.encode(), "shop.py").findings)


@pytest.mark.parametrize("name", IN_A_WORKFLOW)
def test_in_a_workflow(name):
    program = PRELUDE + MODULE + indent(IN_A_WORKFLOW[name], "    ")

    assert found_in(program) == marked(program)


@pytest.mark.parametrize("name", WHOLE)
def test_in_a_module(name):
    program = PRELUDE + dedent(WHOLE[name])

    assert found_in(program) == marked(program)


def test_every_rule_has_a_program():
    tried = {code for program in (*IN_A_WORKFLOW.values(), *WHOLE.values()) for _, code in marked(program)}

    assert tried == set(RULES)


def test_the_same_code_outside_of_workflows_is_free():
    program = PRELUDE + MODULE.replace("@workflow\n", "") + "    time.time()\n    print(uuid4())\n"

    assert found_in(program) == []
