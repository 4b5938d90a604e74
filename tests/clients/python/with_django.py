"""Runs started from Django, inside transaction.atomic: rolled back, beside a savepoint, committed, repeated, cancelled.

Connects as PGHOST, PGPORT, PGUSER, PGPASSWORD and PGDATABASE say. The app's own table is `deployments (note, run_id)`.
"""

import json
import os

import django
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": os.environ["PGHOST"],
            "PORT": os.environ["PGPORT"],
            "USER": os.environ["PGUSER"],
            "PASSWORD": os.environ["PGPASSWORD"],
            "NAME": os.environ["PGDATABASE"],
            # A pooler in transaction mode may send the next transaction to another connection.
            "DISABLE_SERVER_SIDE_CURSORS": True,
        }
    },
    USE_TZ=True,
)
django.setup()

from django.db import DatabaseError, connection, transaction  # noqa: E402  after the settings

CONVERSATION = os.environ["CONVERSATION"]
BOX = os.environ["BOX"]
PRINCIPAL = json.dumps({"type": "user", "id": "u1"})


def query(sql, parameters):
    """All rows, as dictionaries."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row)) for row in cursor.fetchall()] if names else []


def start(command, key):
    [run] = query(
        """select * from boxrun.start_run(conversation_id => %s, box_id => %s, principal => %s,
                                          command => %s, idempotency_key => %s)""",
        [CONVERSATION, BOX, PRINCIPAL, command, key],
    )
    return run


def refusal(error):
    """Django wraps the driver's error: psycopg 3 calls the SQLSTATE `sqlstate`, psycopg2 `pgcode`."""
    cause = error.__cause__
    sqlstate = getattr(cause, "sqlstate", None) or cause.pgcode
    return [sqlstate, cause.diag.message_primary], cause.diag.message_detail


refusals = []
with transaction.atomic():
    query("select * from boxrun.attach_box(%s, %s, %s)", [CONVERSATION, BOX, PRINCIPAL])


# Rolled back, nothing has happened: neither our row nor the run.
class ChangedOurMind(Exception):
    pass


try:
    with transaction.atomic():
        query("insert into deployments (note) values (%s)", ["rolled back"])
        start("make test", "rolled-back")
        raise ChangedOurMind
except ChangedOurMind:
    pass

# A refusal inside a nested atomic, which is a savepoint, leaves the outer one alive.
with transaction.atomic():
    query("insert into deployments (note) values (%s)", ["committed"])
    try:
        with transaction.atomic():
            start("   ", "refused")
    except DatabaseError as error:
        refusals.append(refusal(error)[0])
    run = start("make test", "deploy-1")
    query("update deployments set run_id = %s where note = %s", [run["id"], "committed"])

# The same key, box and command is the same run.
repeated = start("make test", "deploy-1")
try:
    start("make lint", "deploy-2")
except DatabaseError as error:
    code, active = refusal(error)
    refusals.append(code)

listed = query("select id from boxrun.list_runs(%s)", [CONVERSATION])
[output] = query(
    "select * from boxrun.read_output(conversation_id => %s, run_id => %s, from_offset => %s)",
    [CONVERSATION, run["id"], 0],
)
[ended] = query(
    "select * from boxrun.cancel_run(conversation_id => %s, run_id => %s, principal => %s)",
    [CONVERSATION, run["id"], PRINCIPAL],
)

print(
    json.dumps(
        {
            "run": str(run["id"]),
            "repeated": str(repeated["id"]),
            "refusals": refusals,
            "active": active,
            "listed": [str(row["id"]) for row in listed],
            "next_offset": output["next_offset"],
            "ended": ended["state"],
        }
    )
)
