"""Runs started from Python with psycopg 3: rolled back, beside a savepoint, committed, repeated, cancelled.

Connects as PGHOST, PGPORT, PGUSER, PGPASSWORD and PGDATABASE say. The app's own table is `deployments (note, run_id)`.
"""

import json
import os
import uuid

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

CONVERSATION = uuid.UUID(os.environ["CONVERSATION"])
BOX = os.environ["BOX"]
PRINCIPAL = Jsonb({"type": "user", "id": "u1"})


def start(conn, command, key):
    return conn.execute(
        """select * from boxrun.start_run(conversation_id => %s, box_id => %s, principal => %s,
                                          command => %s, idempotency_key => %s)""",
        (CONVERSATION, BOX, PRINCIPAL, command, key),
    ).fetchone()


def refusal(error):
    return [error.sqlstate, error.diag.message_primary]


refusals = []
# prepare_threshold=None: a pooler in transaction mode may send the next transaction to another connection.
with psycopg.connect(autocommit=True, row_factory=dict_row, prepare_threshold=None) as conn:
    conn.execute("select boxrun.attach_box(%s, %s, %s)", (CONVERSATION, BOX, PRINCIPAL))

    # Rolled back, nothing has happened: neither our row nor the run.
    with conn.transaction(force_rollback=True):
        conn.execute("insert into deployments (note) values ('rolled back')")
        start(conn, "make test", "rolled-back")

    # A refusal inside a nested transaction, which is a savepoint, leaves the outer one alive.
    with conn.transaction():
        conn.execute("insert into deployments (note) values ('committed')")
        try:
            with conn.transaction():
                start(conn, "   ", "refused")
        except psycopg.Error as error:
            refusals.append(refusal(error))
        run = start(conn, "make test", "deploy-1")
        conn.execute("update deployments set run_id = %s where note = 'committed'", (run["id"],))

    # The same key, box and command is the same run.
    repeated = start(conn, "make test", "deploy-1")
    try:
        start(conn, "make lint", "deploy-2")
    except psycopg.Error as error:
        refusals.append(refusal(error))
        active = error.diag.message_detail

    listed = conn.execute("select id from boxrun.list_runs(%s)", (CONVERSATION,)).fetchall()
    output = conn.execute(
        "select * from boxrun.read_output(conversation_id => %s, run_id => %s, from_offset => %s)",
        (CONVERSATION, run["id"], 0),
    ).fetchone()
    ended = conn.execute(
        "select * from boxrun.cancel_run(conversation_id => %s, run_id => %s, principal => %s)",
        (CONVERSATION, run["id"], PRINCIPAL),
    ).fetchone()

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
