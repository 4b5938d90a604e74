// Runs started from Node with pg: rolled back, beside a savepoint, committed, repeated, cancelled.
//
// Connects as PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE say. The app's own table is `deployments (note, run_id)`.
'use strict'

const { Client } = require('pg')

const conversation = process.env.CONVERSATION
const box = process.env.BOX
const principal = { type: 'user', id: 'u1' }

// Statements are not named, so that a pooler in transaction mode may send the next transaction to another connection.
const client = new Client()

async function one(sql, values) {
  const { rows } = await client.query(sql, values)
  return rows[0]
}

function start(command, key) {
  return one(
    `select * from boxrun.start_run(conversation_id => $1, box_id => $2, principal => $3,
                                    command => $4, idempotency_key => $5)`,
    [conversation, box, principal, command, key],
  )
}

// What `work` does is committed, or rolled back where it throws. Inside a transaction it is a savepoint.
let depth = 0
async function atomic(work) {
  const [begin, commit, rollBack] =
    depth === 0
      ? ['begin', 'commit', 'rollback']
      : [`savepoint s${depth}`, `release savepoint s${depth}`, `rollback to savepoint s${depth}`]
  await client.query(begin)
  depth += 1
  let result
  try {
    result = await work()
  } catch (error) {
    depth -= 1
    await client.query(rollBack)
    throw error
  }
  depth -= 1
  await client.query(commit)
  return result
}

// The error of a refusal; everything else is thrown on.
async function refused(work) {
  try {
    await work()
  } catch (error) {
    if (error.code && error.code.startsWith('BX')) return error
    throw error
  }
  throw new Error('it was not refused')
}

async function main() {
  await client.connect()
  await one('select * from boxrun.attach_box($1, $2, $3)', [conversation, box, principal])

  // Rolled back, nothing has happened: neither our row nor the run.
  const changedOurMind = new Error('changed our mind')
  await atomic(async () => {
    await client.query("insert into deployments (note) values ('rolled back')")
    await start('make test', 'rolled-back')
    throw changedOurMind
  }).catch((error) => {
    if (error !== changedOurMind) throw error
  })

  // A refusal inside a savepoint leaves the transaction alive.
  let blank
  const run = await atomic(async () => {
    await client.query("insert into deployments (note) values ('committed')")
    blank = await refused(() => atomic(() => start('   ', 'refused')))
    const started = await start('make test', 'deploy-1')
    await client.query("update deployments set run_id = $1 where note = 'committed'", [started.id])
    return started
  })

  // The same key, box and command is the same run.
  const repeated = await start('make test', 'deploy-1')
  const inProgress = await refused(() => start('make lint', 'deploy-2'))

  const listed = await client.query('select id from boxrun.list_runs($1)', [conversation])
  const output = await one(
    'select * from boxrun.read_output(conversation_id => $1, run_id => $2, from_offset => $3)',
    [conversation, run.id, 0],
  )
  const ended = await one('select * from boxrun.cancel_run(conversation_id => $1, run_id => $2, principal => $3)', [
    conversation,
    run.id,
    principal,
  ])

  console.log(
    JSON.stringify({
      run: run.id,
      repeated: repeated.id,
      refusals: [blank, inProgress].map((error) => [error.code, error.message]),
      active: inProgress.detail,
      listed: listed.rows.map((row) => row.id),
      // pg gives a bigint as text, because a number of JavaScript may not hold it.
      next_offset: Number(output.next_offset),
      ended: ended.state,
    }),
  )
}

main()
  .finally(() => client.end())
  .catch((error) => {
    console.error(error)
    process.exitCode = 1
  })
