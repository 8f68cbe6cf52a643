"""``ctx.tag``: change the tags by which this run is found."""

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.tags import check_tag
from resurgam.runtime.context.activities import fingerprint
from resurgam.runtime.matching.recorder import Recorder


def set_tags(recorder: Recorder, tags: dict[str, str | None], step: int | None) -> None:
    """Issue the command that changes tags, and have the commit change those of the instance."""
    if not tags:
        raise ValueError('ctx.tag needs at least one tag, such as ctx.tag(stage="paid")')
    if recorder.mode.rehearsing:  # values may be placeholders, of which no tag can be made
        recorder.issue(events.TagsSet, step=step, tags={})
        return
    for name, value in tags.items():
        if not (value is None or isinstance(value, str)):
            raise TypeError(f"ctx.tag: the value of a tag must be a string, or None to remove it, got {name}={value!r}")
        check_tag(name, value or "")
    given = dict(sorted(tags.items()))
    digest = fingerprint(Raw(msgspec.json.encode(given)))
    command = recorder.issue(events.TagsSet, step=step, tags=given, digest=digest)
    if recorder.log.is_new(command):
        recorder.outbox.add(command.seq, "tags", recorder.log.state.tags)
