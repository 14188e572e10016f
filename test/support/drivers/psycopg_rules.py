"""Rules about psycopg 3, checked against the pooler whose URL is the first argument.

Reports on standard output as test/support/programs.ts reads it.
"""

import sys
import threading
import time
import traceback

import psycopg
from psycopg import pq

URL = sys.argv[1]


def connect(**options):
    return psycopg.connect(URL, **options)


def rule_values():
    """parameters and rows pass in text and in binary"""
    with connect(autocommit=True) as conn:
        values = (7, "Ünï – 😀", b"\x00\xff\x01", [1, 2, 3], None, 1.5, True)
        casts = "%s::int, %s::text, %s::bytea, %s::int[], %s::date, %s::float8, %s::bool"
        for binary in (False, True):
            row = conn.execute("SELECT " + casts, values, binary=binary).fetchone()
            assert row == values, row
        assert conn.execute("SELECT 1; SELECT 2").fetchone() == (1,)


def rule_prepared():
    """prepared statements of several connections serve on shared servers"""
    conns = [connect(autocommit=True) for _ in range(8)]
    for turn in range(12):
        for who, conn in enumerate(conns):
            row = conn.execute("SELECT %s::int + 1, %s::text", (turn, f"w{who}"), prepare=True)
            assert row.fetchone() == (turn + 1, f"w{who}")
            row = conn.execute(f"SELECT {who}, %s::int", (turn,), prepare=True)
            assert row.fetchone() == (who, turn)
    for conn in conns:
        conn.close()


def rule_ddl():
    """prepared statements survive a ROLLBACK and a DROP, after which psycopg deallocates all"""
    with connect(autocommit=True) as conn:
        for turn in range(4):
            conn.execute("CREATE TABLE IF NOT EXISTS py_dropped (n int)")
            conn.execute("INSERT INTO py_dropped VALUES (%s)", (turn,), prepare=True)
            found = conn.execute("SELECT n FROM py_dropped WHERE n = %s", (turn,), prepare=True)
            assert found.fetchone() == (turn,)
            conn.execute("DROP TABLE py_dropped")
            try:
                with conn.transaction():
                    conn.execute("SELECT %s::int", (turn,), prepare=True)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass


def rule_errors():
    """an error keeps its SQLSTATE, and a prepared statement works after it"""
    with connect(autocommit=True) as conn:
        for divisor in (1, 0, 2, 0, 5):
            try:
                row = conn.execute("SELECT 10 / %s::int", (divisor,), prepare=True).fetchone()
                assert row == (10 // divisor,)
            except psycopg.errors.DivisionByZero as error:
                assert divisor == 0 and error.diag.sqlstate == "22012"
        for _ in range(3):
            try:
                conn.execute("SELECT %s FROM nowhere", (1,), prepare=True)
                raise AssertionError("no error")
            except psycopg.errors.UndefinedTable:
                pass


def rule_transactions():
    """transactions and nested ones are kept or undone as told"""
    with connect() as conn:
        conn.execute("DROP TABLE IF EXISTS py_kept")
        conn.execute("CREATE TABLE py_kept (n int)")
        conn.commit()
        with conn.transaction():
            conn.execute("INSERT INTO py_kept VALUES (%s)", (1,), prepare=True)
            try:
                with conn.transaction():
                    conn.execute("INSERT INTO py_kept VALUES (%s)", (2,), prepare=True)
                    conn.execute("SELECT 1/0")
            except psycopg.errors.DivisionByZero:
                pass
            conn.execute("INSERT INTO py_kept VALUES (%s)", (3,), prepare=True)
        conn.execute("INSERT INTO py_kept VALUES (4)")
        conn.rollback()
        assert conn.execute("SELECT n FROM py_kept ORDER BY n").fetchall() == [(1,), (3,)]


def rule_cursors():
    """server-side cursors and streams hand rows out in portions"""
    with connect() as conn:
        with conn.cursor(name="portions") as cur:
            cur.execute("SELECT generate_series(1, %s)", (1000,))
            assert len(cur.fetchmany(300)) == 300
            assert sum(1 for _ in cur) == 700
        rows = conn.cursor().stream("SELECT generate_series(1, 500)")
        assert sum(n for (n,) in rows) == 125250


def rule_pipeline():
    """pipeline mode answers in order, and goes on after an error at the next sync"""
    with connect(autocommit=True) as conn:
        with conn.pipeline():
            cursors = [
                conn.execute("SELECT %s::int", (n,), prepare=n % 2 == 0) for n in range(200)
            ]
            assert [cur.fetchone()[0] for cur in cursors] == list(range(200))
        assert conn.info.pipeline_status == pq.PipelineStatus.OFF


def rule_libpq_pipeline():
    """after an error in libpq's pipeline all up to the next sync is skipped, and no more"""
    conn = pq.PGconn.connect(URL.encode())
    conn.enter_pipeline_mode()
    conn.send_prepare(b"quotient", b"SELECT 12 / $1::int")
    for divisor in (b"1", b"0", b"2"):
        conn.send_query_prepared(b"quotient", [divisor])
    conn.send_prepare(b"skipped", b"SELECT 1")
    conn.pipeline_sync()
    conn.send_query_prepared(b"quotient", [b"3"])
    conn.send_prepare(b"sent", b"SELECT 2")
    conn.send_query_prepared(b"sent", [])
    conn.pipeline_sync()
    conn.send_query_params(b"SELECT $1::text", [b"last"])
    conn.pipeline_sync()
    seen = results_to_sync(conn, 3)
    # Its Parse was skipped, so the name is free.
    conn.send_prepare(b"skipped", b"SELECT 3")
    conn.send_query_prepared(b"skipped", [])
    conn.pipeline_sync()
    seen += results_to_sync(conn, 1)
    conn.finish()
    sync, ok, skip = "PIPELINE_SYNC", "COMMAND_OK", "PIPELINE_ABORTED"
    first = [ok, b"12", "FATAL_ERROR", skip, skip, sync]
    assert seen == first + [b"4", ok, b"2", sync, b"last", sync, ok, b"3", sync], seen


def results_to_sync(conn, count):
    """Values and statuses up to so many PIPELINE_SYNCs."""
    seen = []
    while seen.count("PIPELINE_SYNC") < count:
        result = conn.get_result()
        if result is None:
            assert conn.status == pq.ConnStatus.OK, (seen, conn.error_message)
            continue
        status = pq.ExecStatus(result.status)
        is_row = status == pq.ExecStatus.TUPLES_OK
        seen.append(result.get_value(0, 0) if is_row else status.name)
    return seen


def rule_many():
    """executemany sends a batch and returns the rows of each"""
    with connect() as conn:
        conn.execute("DROP TABLE IF EXISTS py_many")
        conn.execute("CREATE TABLE py_many (n int)")
        cur = conn.cursor()
        cur.executemany(
            "INSERT INTO py_many VALUES (%s) RETURNING n", [(n,) for n in range(500)], returning=True
        )
        found = [cur.fetchone()[0]]
        while cur.nextset():
            found.append(cur.fetchone()[0])
        assert found == list(range(500))
        conn.commit()


def rule_copy():
    """COPY moves rows in and out, in text and in binary"""
    with connect() as conn:
        conn.execute("DROP TABLE IF EXISTS py_copied")
        conn.execute("CREATE TABLE py_copied (n int, t text, b bytea)")
        wanted = [(n, f"line {n} ü", bytes([n % 256]) * (n % 99)) for n in range(3000)]
        with conn.cursor().copy("COPY py_copied FROM STDIN") as copy:
            for row in wanted[:1500]:
                copy.write_row(row)
        with conn.cursor().copy("COPY py_copied FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int4", "text", "bytea"])
            for row in wanted[1500:]:
                copy.write_row(row)
        conn.commit()
        for form in ("text", "binary"):
            sql = f"COPY (SELECT * FROM py_copied ORDER BY n) TO STDOUT (FORMAT {form})"
            with conn.cursor().copy(sql) as copy:
                copy.set_types(["int4", "text", "bytea"])
                assert list(copy.rows()) == wanted
        try:
            with conn.cursor().copy("COPY py_copied FROM STDIN") as copy:
                copy.write(b"not a number\n")
            raise AssertionError("no error")
        except psycopg.errors.InvalidTextRepresentation:
            conn.rollback()
        try:
            with conn.cursor().copy("COPY py_copied FROM STDIN") as copy:
                copy.write_row(wanted[0])
                raise ZeroDivisionError
        except psycopg.errors.QueryCanceled:
            conn.rollback()
        assert conn.execute("SELECT count(*) FROM py_copied").fetchone() == (3000,)


def rule_cancel():
    """a cancelled query raises QueryCanceled and its connection goes on"""
    with connect(autocommit=True) as conn, connect(autocommit=True) as other:
        for _ in range(3):
            timer = threading.Thread(target=cancel_soon, args=(conn,))
            timer.start()
            try:
                conn.execute("DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$")
                raise AssertionError("not cancelled")
            except psycopg.errors.QueryCanceled:
                pass
            timer.join()
            assert conn.execute("SELECT %s::int", (1,), prepare=True).fetchone() == (1,)
            assert other.execute("SELECT %s::int", (2,), prepare=True).fetchone() == (2,)


def cancel_soon(conn):
    """Cancels once the server has said that the query runs."""
    running = threading.Event()
    conn.add_notice_handler(lambda _: running.set())
    # psycopg hands notices out while it waits for the result, in the thread that waits.
    running.wait(20)
    conn.cancel()


def rule_threads():
    """sixteen threads share the servers without mixing rows"""
    problems = []

    def work(who):
        try:
            with connect() as conn:
                for turn in range(25):
                    with conn.transaction():
                        conn.execute("SELECT set_config('py.who', %s, true)", (f"{who}-{turn}",))
                        row = conn.execute("SELECT current_setting('py.who'), %s::int", (who,))
                        assert row.fetchone() == (f"{who}-{turn}", who)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems


def main():
    rules = [value for name, value in globals().items() if name.startswith("rule_")]
    print(f"plan {len(rules)}", flush=True)
    for rule in rules:
        started = time.monotonic()
        try:
            rule()
            print(f"ok {rule.__doc__}", flush=True)
        except BaseException:
            seconds = time.monotonic() - started
            print(f"not ok {rule.__doc__}\nafter {seconds:.1f} s\n{traceback.format_exc()}", flush=True)


main()
