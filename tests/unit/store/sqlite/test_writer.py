"""Pieces of work that call back: when they are written, and that nothing of one reaches the others."""

import asyncio
import sqlite3

import pytest

from resurgam.store.sqlite import writer as module
from resurgam.store.sqlite.connection import Database
from resurgam.store.sqlite.writer import Writer


@pytest.fixture
async def writer(tmp_path):
    database = Database(tmp_path / "a.db")
    writer = Writer(database, lambda session: session, lambda session: None)
    yield writer
    await writer.close()
    database.close()


def transactions(writer):
    """Return a list that grows with each transaction."""
    begun = []
    writer._database._writing.set_trace_callback(lambda sql: begun.append(sql) if sql == "BEGIN IMMEDIATE" else None)
    return begun


async def test_a_piece_that_is_alone_is_written_at_once(writer):
    answers = []
    writer.submit(lambda session: 7, answers.append)
    assert answers == [7]


async def test_pieces_of_one_turn_share_a_transaction_and_are_answered_in_order(writer):
    begun, answers = transactions(writer), []
    for number in range(10):
        writer.submit(lambda session, number=number: number, answers.append)
    await asyncio.sleep(0)
    assert answers == list(range(10))
    assert len(begun) == 2  # the first could not know that there would be others


async def test_a_lone_piece_after_many_others_is_written_without_a_look_for_others(writer, monkeypatch):
    answers, looks = [], []
    look = writer._look_for_others
    monkeypatch.setattr(writer, "_look_for_others", lambda: looks.append(len(answers)) or look())
    for number in range(32):
        writer.submit(lambda session, number=number: number, answers.append)
        assert len(answers) == number + 1
        await asyncio.sleep(0)
    assert looks == [1, 3, 7, 15, 23, 31]


async def test_pieces_that_come_together_after_many_lone_ones_soon_share_transactions_again(writer):
    for _ in range(100):
        await writer.write(lambda session: None)
        await asyncio.sleep(0)
    begun, answers = transactions(writer), []
    for number in range(20):
        writer.submit(lambda session, number=number: number, answers.append)
    await asyncio.sleep(0)
    assert answers == list(range(20))
    assert len(begun) <= module._TRUSTED + 1
    begun.clear()
    for number in range(20):
        writer.submit(lambda session, number=number: number, answers.append)
    await asyncio.sleep(0)
    assert len(begun) == 1


async def test_calls_one_after_another_are_soon_answered_at_once_without_an_iteration_between_them(writer):
    at_once = []
    for _ in range(60):
        answer = writer.write(lambda session: 7)
        at_once.append(answer.done())
        assert await answer == 7
    assert at_once[:4] == [True, False, True, True]
    assert at_once[-54:].count(False) == 6  # one in nine: it is looked for others then


async def test_commits_of_a_worker_in_one_iteration_are_not_trusted_to_be_alone(writer):
    begun, answers = transactions(writer), []
    for round_ in range(10):
        for number in range(2):
            writer.submit(lambda session, number=number: number, answers.append)
        await asyncio.sleep(0)
        assert len(answers) == 2 * (round_ + 1)
    begun.clear()
    for number in range(20):
        writer.submit(lambda session, number=number: number, answers.append)
    await asyncio.sleep(0)
    assert len(begun) == 2


async def test_a_callback_that_submits_is_not_called_again_from_within(writer):
    depths, depth = [], 0
    finished = asyncio.get_running_loop().create_future()

    def done(answer):
        nonlocal depth
        depth += 1
        depths.append(depth)
        if answer == 0:
            finished.set_result(None)
        else:
            writer.submit(lambda session: answer - 1, done)
        depth -= 1

    writer.submit(lambda session: 50, done)
    await finished
    assert depths == [1] * 51


async def test_all_of_a_group_are_told_before_the_next_transaction(writer):
    begun, order = transactions(writer), []

    def done(answer):
        order.append((answer, len(begun)))
        if answer < 10:
            writer.submit(lambda session: answer + 10, done)

    for number in range(3):
        writer.submit(lambda session, number=number: number, done)
    while len(order) < 6:
        await asyncio.sleep(0)
    assert order == [(0, 1), (10, 2), (1, 2), (2, 2), (11, 3), (12, 3)]


async def test_a_callback_that_fails_does_not_keep_the_answer_from_the_others(writer):
    answers, reported = [], []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def fail(answer):
        raise ZeroDivisionError

    for done in (answers.append, fail, answers.append):
        writer.submit(lambda session: 7, done)
    await asyncio.sleep(0)
    assert answers == [7, 7]
    assert [type(error) for error in reported] == [ZeroDivisionError]


async def test_a_piece_that_fails_is_called_back_with_its_error(writer):
    answers = []

    def bad(session):
        raise ZeroDivisionError

    for work in (lambda session: 1, bad, lambda session: 2):
        writer.submit(work, answers.append)
    await writer.close()
    assert (answers[0], answers[2]) == (1, 2)
    assert isinstance(answers[1], ZeroDivisionError)


async def test_a_large_group_is_written_in_several_transactions(writer, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 4)
    begun, answers = transactions(writer), []
    for number in range(10):
        writer.submit(lambda session, number=number: number, answers.append)
    while len(answers) < 10:
        await asyncio.sleep(0)
    assert answers == list(range(10))
    assert len(begun) == 4  # one alone, then four, four and one


async def test_what_waits_behind_another_process_is_called_back_when_it_is_written(writer, tmp_path):
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answers = []
    for number in range(3):
        writer.submit(lambda session, number=number: number, answers.append)
    await asyncio.sleep(0)
    assert answers == []
    other.execute("ROLLBACK")
    await writer.close()
    assert answers == [0, 1, 2]
    other.close()
