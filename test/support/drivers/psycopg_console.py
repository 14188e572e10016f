"""Rules about reading the console with psycopg 3: the arguments are its URL, then the topics of SHOW.

Reports on standard output as test/support/programs.ts reads it.
"""

import decimal
import sys
import traceback

import psycopg

URL = sys.argv[1]
TOPICS = sys.argv[2:]
CLASSES = {17: bytes, 20: int, 23: int, 25: str, 1700: decimal.Decimal}


def read(conn, topic, **options):
    cursor = conn.execute("SHOW " + topic, **options)
    for row in cursor.fetchall():
        assert len(row) == len(cursor.description)
        for value, column in zip(row, cursor.description):
            if value is not None:
                wanted = CLASSES[column.type_code]
                assert isinstance(value, wanted), (topic, column.name, value)


def rule_text():
    """every SHOW is read in text"""
    with psycopg.connect(URL, autocommit=True) as conn:
        for topic in TOPICS:
            read(conn, topic)


def rule_binary():
    """every SHOW is read in binary"""
    with psycopg.connect(URL, autocommit=True) as conn:
        for topic in TOPICS:
            read(conn, topic, binary=True)


def rule_prepared():
    """every SHOW is read from a prepared statement"""
    with psycopg.connect(URL, autocommit=True) as conn:
        for topic in TOPICS:
            for _ in range(3):
                read(conn, topic, prepare=True)


def rule_transactions():
    """a connection without autocommit reads too"""
    with psycopg.connect(URL) as conn:
        for topic in TOPICS:
            read(conn, topic)
        conn.commit()
        conn.rollback()


def rule_errors():
    """an error leaves the connection as it was"""
    with psycopg.connect(URL, autocommit=True) as conn:
        for _ in range(3):
            try:
                conn.execute("SHOW NOTHING")
                raise AssertionError("no error")
            except psycopg.errors.ProtocolViolation as error:
                assert error.diag.message_primary.startswith("invalid command 'SHOW NOTHING'")
            read(conn, "STATE")


RULES = [rule_text, rule_binary, rule_prepared, rule_transactions, rule_errors]

print(f"plan {len(RULES)}")
for rule in RULES:
    try:
        rule()
        print(f"ok {rule.__doc__}")
    except Exception:
        print(f"not ok {rule.__doc__}")
        traceback.print_exc(file=sys.stdout)
