"""A stand-in for redis-cli, as the documentation uses it: ``python redis_cli.py PORT COMMAND...`` prints a reply."""

import socket
import sys

import hiredis


def ask(connection, *command):
    """Return the reply to a command."""
    connection.sendall(hiredis.pack_command(command))
    reader = hiredis.Reader(encoding="utf-8", notEnoughData=connection)
    while (reply := reader.gets()) is connection:
        reader.feed(connection.recv(65536))
    return reply


def scan(connection, pattern):
    """Yield the keys that fit a pattern."""
    cursor = "0"
    while True:
        cursor, keys = ask(connection, "SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
        yield from keys
        if cursor == "0":
            return


def lines_of(reply):
    """Yield the lines that redis-cli prints where it does not print to a terminal."""
    if isinstance(reply, list):
        for one in reply:
            yield from lines_of(one)
    else:
        yield "" if reply is None else str(reply)


def main():
    port, *command = sys.argv[1:]
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        if command[:2] == ["--scan", "--pattern"]:
            reply = list(scan(connection, command[2]))
        else:
            reply = ask(connection, *command)
        for line in lines_of(reply):
            print(line)


if __name__ == "__main__":
    main()
