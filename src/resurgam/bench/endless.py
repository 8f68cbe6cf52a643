"""W8: an endless loop. Forgotten iterations must cost neither time nor history nor memory."""

import itertools

from msgspec.structs import replace

from resurgam.bench import programs
from resurgam.bench.figures import Figures, level_of, percentile, rss, sampled
from resurgam.bench.scene import Scene, count_of, per_step

_ENDS = 1000
"""How many iterations are timed at the start and at the end."""


async def endless(scene: Scene) -> list[Figures]:
    """W8: a loop of 100,000 iterations with one activity each; compare the first thousand with the last."""
    length = max(scene.size(100_000), 2 * _ENDS)
    programs.stamps.clear()
    async with scene.engine("w8") as engine:
        await engine.execute(programs.looping, _ENDS, 0)
        before = rss()
        handle = await engine.start(programs.looping, length, _ENDS)
        await handle.result()
        grown = rss() - before
        # The first thousand of a new loop, measured right after the last of this one, under the same load.
        await engine.execute(programs.looping, _ENDS, _ENDS)
        active, kept = len(await handle.history()), len(await handle.history(forgotten=True))
        chain = await engine.start(programs.chain, 100)
        await chain.result()
        history = await chain.history()
        count = await count_of(engine, engine.execute(programs.looping, _ENDS, 0))
        level = level_of(engine.store)
    raw = scene.raw("one commit a step", history, times=10)
    last, first = programs.stamps[-2 * _ENDS : -_ENDS], programs.stamps[-_ENDS:]
    times = [[later - earlier for earlier, later in itertools.pairwise(stamps)] for stamps in (first, last)]
    return [
        replace(
            sampled("W8", f"1 loop of {length:,} iterations", "iteration", times[1]),
            rate=(_ENDS - 1) / (last[-1] - last[0]),
            raw=raw and raw.per_commit(100),
            level=level,
            more={
                "length": length,
                "last_to_first": percentile(times[1], 0.5) / percentile(times[0], 0.5),
                "active_entries": active,
                "kept_entries": kept,
                "bytes_grown": grown,
            },
            **per_step(count, _ENDS),
        )
    ]
