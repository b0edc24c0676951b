"""Many processes call the ledger on a few keys, while work fails, connections break and processes are
killed. Prints what came of it, as one JSON object.

An effect is a row in a table without a unique constraint, so that a doubled one is counted and not refused.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from typing import Any, Dict, List

from urllib.parse import urlsplit

import semel

TENANT = "stress"
# Shares of the work that runs; of all calls for the last one.
FAILING, BREAKING, KILLING = 0.25, 0.15, 0.02

# Each replaces one guard of the functions by nothing.
SABOTAGE = {
    # Rivals are not kept from a key that an open transaction holds.
    "lock": (
        "semel_take",
        [
            "is_locked := pg_try_advisory_xact_lock(public.semel_lock_key(draft.digest));",
            "is_locked := true;",
        ],
    ),
    # A claim whose key has another record by now completes all the same.
    "fence": ("semel_write", ["return written = 1;", "return true;"]),
}


class Failing(Exception):
    """The work fails, as work does."""


class Postgres:
    """PostgreSQL through psycopg."""

    # How calls may be refused while others have their key: the lock leaves nothing to the fence.
    refusals = {"InProgress"}

    def __init__(self, url: str) -> None:
        import psycopg

        import semel.psycopg

        self.connect = lambda: psycopg.connect(url)
        self.ledger = semel.psycopg.ledger
        self.lost = (psycopg.OperationalError,)
        self.number, self.end = "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%s)"


class MySql:
    """MariaDB and MySQL through PyMySQL."""

    refusals = {"InProgress", "ClaimLost"}

    def __init__(self, url: str) -> None:
        import pymysql

        import semel.pymysql

        parts = urlsplit(url)
        # READ COMMITTED, as the documentation recommends: there a rival is told at once.
        self.connect = lambda: pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username,
            password=parts.password or "",
            database=parts.path[1:],
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )
        self.ledger = semel.pymysql.ledger
        self.lost = (pymysql.OperationalError, pymysql.InterfaceError, pymysql.InternalError)
        self.number, self.end = "SELECT CONNECTION_ID()", "KILL %s"


def server(url: str) -> Any:
    return MySql(url) if url.startswith("mysql") else Postgres(url)


def query(connection: Any, statement: str, *arguments: Any) -> List[Any]:
    cursor = connection.cursor()
    cursor.execute(statement, arguments or None)
    return list(cursor.fetchall()) if cursor.description else []


class Client:
    """One process: it makes its calls and writes down every result that it got."""

    def __init__(self, url: str, seed: int, journal: str) -> None:
        self.random = random.Random(seed)
        self.journal = os.open(f"{journal}.answers", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.refusals = os.open(f"{journal}.refused", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.server = server(url)
        self.ledger = self.server.ledger(
            self.server.connect, tenant=TENANT, wait=timedelta(seconds=60)
        )

    def place(self, unit: Any, key: str, faults: bool) -> str:
        """Takes effect, unless a fault comes in between."""
        answer = f"{key} by {os.getpid()} in {self.random.random()}"
        query(unit.connection, "INSERT INTO effect (name, answer) VALUES (%s, %s)", key, answer)
        unit.append("order.placed", {"key": key}, source="/stress", name="placed")
        fault = self.random.random() if faults else 1.0
        if fault < FAILING:
            raise Failing("declined")
        if fault < FAILING + BREAKING:
            # As a server does that is restarted: the next statement finds the connection gone.
            ((number,),) = query(unit.connection, self.server.number)
            with self.server.connect() as other:
                query(other, self.server.end, number)
        return answer

    def call(self, key: str, faults: bool = True) -> bool:
        """Makes one call; True if it got a result."""
        try:
            result = self.ledger.execute(
                lambda unit: self.place(unit, key, faults),
                operation="CreateOrder",
                key=key,
                fields={"key": key},
            )
        except (Failing, semel.Unavailable, *self.server.lost):
            return False
        except semel.Refused as refused:
            os.write(self.refusals, f"{type(refused).__name__}\n".encode())
            return False
        line = json.dumps([key, result.value, result.replayed])
        os.write(self.journal, f"{line}\n".encode())
        return True


def work(arguments: Any) -> None:
    """Makes the calls from number `first` on; the number of the next one survives in a file."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    client = Client(
        arguments.url, arguments.seed, f"{arguments.directory}/{arguments.process}"
    )
    # All processes use the keys in one order, and so meet on them.
    order = random.Random(arguments.order).choices(range(arguments.keys), k=arguments.calls)
    for number in range(arguments.first, arguments.calls):
        with open(f"{arguments.directory}/{arguments.process}.next", "w") as next_call:
            next_call.write(str(number + 1))
        if client.random.random() < KILLING:
            # In the middle of whatever the call then does.
            signal.setitimer(signal.ITIMER_REAL, client.random.uniform(0.001, 0.03))
        client.call(f"key-{order[number]}")
    # An interpreter that is ending has no handler any more.
    signal.setitimer(signal.ITIMER_REAL, 0)


def spawn(arguments: Any, directory: str, process: int, first: int, generation: int) -> Any:
    named = vars(arguments) | {
        "directory": directory,
        "process": process,
        "first": first,
        "calls": arguments.calls // arguments.processes,
        "order": arguments.seed,
        "seed": 1_000_000 * arguments.seed + 1000 * generation + process,
    }
    return subprocess.Popen([sys.executable, __file__, json.dumps(named)])


def supervise(arguments: Any, directory: str) -> int:
    """Runs the processes to their end, and starts those again that were killed; returns their number."""
    killed = 0
    running = {p: spawn(arguments, directory, p, 0, 0) for p in range(arguments.processes)}
    while running:
        process, child = next(iter(running.items()))
        status = child.wait()
        del running[process]
        if status == -signal.SIGKILL:
            killed += 1
            with open(f"{directory}/{process}.next") as next_call:
                first = int(next_call.read() or 0)
            running[process] = spawn(arguments, directory, process, first, killed)
        elif status != 0:
            raise SystemExit(f"a client ended with {status}")
    return killed


def sabotage(connection: Any, guards: List[str]) -> None:
    for guard in guards:
        function, (guarded, removed) = SABOTAGE[guard]
        ((definition,),) = query(
            connection, "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", function
        )
        if guarded not in definition:
            raise SystemExit(f"the guard {guard} is not where it was: {function}")
        query(connection, definition.replace(guarded, removed))


def judge(connection: Any, arguments: Any, directory: str) -> Dict[str, Any]:
    """Compares what the clients were told with the effects that are there."""
    # Every key has a result in the end, whatever happened to it.
    client = Client(arguments.url, arguments.seed, f"{directory}/last")
    deadline = time.monotonic() + 300
    for number in range(arguments.keys):
        while not client.call(f"key-{number}", faults=False):
            if time.monotonic() > deadline:
                raise SystemExit(f"key-{number} never got a result")
    answers: Dict[str, set] = {}
    replays = told = 0
    refused: "Counter[str]" = Counter()
    for name in sorted(os.listdir(directory)):
        if name.endswith(".refused"):
            refused.update(line.strip() for line in open(f"{directory}/{name}"))
        if name.endswith(".answers"):
            for line in open(f"{directory}/{name}"):
                key, answer, replayed = json.loads(line)
                answers.setdefault(key, set()).add(answer)
                told += 1
                replays += replayed
    effects = query(connection, "SELECT name, answer FROM effect")
    counts = Counter(key for key, _ in effects)
    (events,) = query(
        connection,
        "SELECT count(*), count(DISTINCT id) FROM semel_outbox WHERE tenant = %s",
        TENANT,
    )
    return {
        "effects": len(effects),
        "doubled": sum(1 for count in counts.values() if count > 1),
        "lost": sum(1 for key in answers if counts[key] == 0),
        "keys_with_several_answers": sum(1 for each in answers.values() if len(each) > 1),
        "foreign_answers": sum(1 for key, answer in effects if answer not in answers.get(key, ())),
        "keys_answered": len(answers),
        "events": list(events),
        "told": told,
        "refused": dict(refused),
        "replayed": replays,
    }


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        return work(argparse.Namespace(**json.loads(sys.argv[1])))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url", required=True, help="a database that `semel migrate apply` has prepared"
    )
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--calls", type=int, default=1200)
    parser.add_argument("--keys", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="append", default=[], choices=sorted(SABOTAGE))
    arguments = parser.parse_args()
    with server(arguments.url).connect() as connection:
        query(connection, "CREATE TABLE effect (name varchar(64), answer varchar(255))")
        sabotage(connection, arguments.sabotage)
        connection.commit()
        with tempfile.TemporaryDirectory() as directory:
            begun = time.monotonic()
            killed = supervise(arguments, directory)
            report = judge(connection, arguments, directory)
    report["killed"] = killed
    report["seconds"] = round(time.monotonic() - begun, 1)
    print(json.dumps(report))
    # Nothing here has another request, a kept failure or an unknown outcome.
    wrong = set(report["refused"]) - server(arguments.url).refusals
    if wrong and not arguments.sabotage:
        raise SystemExit(f"calls were refused for no reason: {sorted(wrong)}")
    return None


if __name__ == "__main__":
    main()
