"""Rules about TLS with psycopg 3: the arguments are the ports of three poolers and a folder of certificates.

The first takes SCRAM, the second client certificates, the third shows a certificate for another name.
Reports on standard output as test/support/programs.ts reads it.
"""

import sys
import traceback

import psycopg

SCRAM, CERT, MISNAMED = sys.argv[1:4]
FOLDER = sys.argv[4]


def connect(port, ca="ca", mode="verify-full", cert=None, **more):
    options = {
        "host": "localhost",
        "port": port,
        "dbname": "app",
        "user": "app",
        "sslmode": mode,
        "sslrootcert": f"{FOLDER}/{ca}.crt",
        "sslcert": f"{FOLDER}/{cert}.crt" if cert else "none",
        "sslkey": f"{FOLDER}/{cert}.key" if cert else "none",
        **more,
    }
    return psycopg.connect(autocommit=True, **options)


def works(conn):
    with conn:
        assert conn.pgconn.ssl_in_use
        for number in range(10):
            row = conn.execute("SELECT %s::int, current_user", [number], prepare=True).fetchone()
            assert row == (number, "app"), row


def refused(text, *args, **more):
    try:
        connect(*args, **more).close()
    except psycopg.OperationalError as error:
        assert text in str(error), error
    else:
        raise AssertionError("it was let in")


def rule_scram():
    """SCRAM with sslmode verify-full, bound to the certificate"""
    works(connect(SCRAM, password="app", channel_binding="require"))
    refused("SASL authentication failed", SCRAM, password="wrong")


def rule_authority():
    """a pooler whose certificate is of another authority is refused"""
    refused("certificate verify failed", SCRAM, ca="other-ca", password="app")


def rule_name():
    """a pooler whose certificate is for another name is refused by verify-full only"""
    refused("does not match host name", MISNAMED, password="app")
    works(connect(MISNAMED, mode="verify-ca", password="app"))


def rule_certificate():
    """a client certificate proves the name, without a password"""
    works(connect(CERT, cert="app"))
    refused("certificate authentication failed", CERT, cert="mallory")
    refused("certificate required", CERT)


RULES = [rule_scram, rule_authority, rule_name, rule_certificate]

print(f"plan {len(RULES)}")
for rule in RULES:
    try:
        rule()
        print(f"ok {rule.__doc__}")
    except Exception:
        print(f"not ok {rule.__doc__}")
        traceback.print_exc(file=sys.stdout)
