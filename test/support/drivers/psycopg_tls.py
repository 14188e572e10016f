"""Rules about TLS with psycopg 3: the arguments are the ports of four poolers and a folder of certificates.

The first takes SCRAM, the second client certificates, the third shows a certificate for another name. The
fourth has an HBA file: in the database `mapped` mallory's certificate proves app_plain, elsewhere a
certificate and a password are needed. Reports on standard output as test/support/programs.ts reads it.
"""

import sys
import threading
import traceback

import psycopg

SCRAM, CERT, MISNAMED, HBA, FOLDER = sys.argv[1:6]
# In TLS 1.3 the alert for a missing certificate races with what the driver sends meanwhile.
WHATEVER = ""


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


def works(conn, name="app"):
    with conn:
        assert conn.pgconn.ssl_in_use
        for number in range(10):
            row = conn.execute("SELECT %s::int, current_user", [number], prepare=True).fetchone()
            assert row == (number, name), row


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
    refused(WHATEVER, CERT)


def rule_hba():
    """an HBA rule maps a certificate to a name, or asks for a password besides"""
    mapped = {"dbname": "mapped", "user": "app_plain"}
    works(connect(HBA, cert="mallory", **mapped), "app_plain")
    refused("certificate authentication failed", HBA, cert="app", **mapped)
    works(connect(HBA, cert="app", password="app", channel_binding="require"))
    refused("SASL authentication failed", HBA, cert="app", password="wrong")
    refused(WHATEVER, HBA, password="app")


def rule_cancel():
    """a cancelled statement fails, and its connection goes on"""
    running = threading.Event()
    with connect(SCRAM, password="app") as conn:
        conn.add_notice_handler(lambda _: running.set())
        timer = threading.Thread(target=lambda: running.wait(20) and conn.cancel())
        timer.start()
        try:
            conn.execute("DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$")
            raise AssertionError("not cancelled")
        except psycopg.errors.QueryCanceled:
            pass
        timer.join()
        assert conn.execute("SELECT %s::int", (1,), prepare=True).fetchone() == (1,)


RULES = [rule_scram, rule_authority, rule_name, rule_certificate, rule_hba, rule_cancel]

print(f"plan {len(RULES)}")
for rule in RULES:
    try:
        rule()
        print(f"ok {rule.__doc__}")
    except Exception:
        print(f"not ok {rule.__doc__}")
        traceback.print_exc(file=sys.stdout)
