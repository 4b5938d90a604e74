-- Claims what is due, at most $4 starts, $5 polls, $6 stops and $7 cleanups, under one fresh lease; of kinds that are paused
-- (limit 0), at most $8 polls and $9 cleanups that go on despite it. An arm with limit 0 reads nothing.
-- Each arm reads the index (kind, claimable_at) from its oldest row and stops at its limit, so the cost is the rows due,
-- never the rows waiting. `now()` is the statement's start: with clock_timestamp(), which is volatile, the index would
-- not be used. The CTE is materialised, so that the limit is taken once and before the update.
with due as materialized (
    select * from (select run_id, claimable_at, lease from boxrun.jobs where kind = 'start' and claimable_at <= now()
                    order by claimable_at limit $4 for update skip locked) a
    union all
    select * from (select run_id, claimable_at, lease from boxrun.jobs where kind = 'poll' and claimable_at <= now()
                    order by claimable_at limit $5 for update skip locked) b
    union all
    select * from (select run_id, claimable_at, lease from boxrun.jobs where kind = 'stop' and claimable_at <= now()
                    order by claimable_at limit $6 for update skip locked) c
    union all
    select * from (select run_id, claimable_at, lease from boxrun.jobs where kind = 'cleanup' and claimable_at <= now()
                    order by claimable_at limit $7 for update skip locked) d
    union all
    select * from (select run_id, claimable_at, lease from boxrun.jobs where kind = 'poll' and despite_pause and claimable_at <= now()
                    order by claimable_at limit $8 for update skip locked) e
    union all
    select * from (select run_id, claimable_at, lease from boxrun.jobs where kind = 'cleanup' and despite_pause and claimable_at <= now()
                    order by claimable_at limit $9 for update skip locked) f
)
update boxrun.jobs j
   set lease = $1, lease_until = clock_timestamp() + make_interval(secs => $2), leased_by = $3, urgent = false
  from due
 where j.run_id = due.run_id
returning j.run_id as "run_id: RunId", j.kind as "kind: JobKind", j.attempts, j.poll_max_bytes, j.last_error_code,
          extract(epoch from clock_timestamp() - due.claimable_at)::float8 as "lateness_seconds!", due.lease is not null as "lapsed!"
