-- The fence: no row with this lease, no finish. A job that becomes due at once under another kind wakes those who serve it.
with before as (
    select run_id, kind from boxrun.jobs where run_id = $1 and lease = $2
), done as (
    update boxrun.jobs j
       set kind = case when j.urgent and $3 in ('start', 'poll') then 'stop' else $3 end,
           due_at = case when j.urgent or $4::float8 <= 0 then clock_timestamp()
                         when $5::timestamptz > clock_timestamp()
                         then least(clock_timestamp() + make_interval(secs => $4), $5)
                         else clock_timestamp() + make_interval(secs => $4) end,
           urgent = false,
           lease = null, lease_until = null, leased_by = null,
           attempts = case when $6 or (j.urgent and $3 in ('start', 'poll')) or j.kind <> $3 and $7::text is null then 0
                           when $7 is not null then j.attempts + 1 else j.attempts end,
           last_error_code = case when $6 then null else coalesce($7, j.last_error_code) end,
           last_error = case when $6 then null else coalesce($8, j.last_error) end,
           last_seen_at = case when $6 then clock_timestamp() else j.last_seen_at end,
           poll_max_bytes = coalesce($9, j.poll_max_bytes),
           -- A cleanup is marked anew by the start that waits for it; a poll reads on to the end.
           despite_pause = j.despite_pause and j.kind = 'poll' and $3 = 'poll'
     where j.run_id = $1 and j.lease = $2
    returning j.run_id, j.kind, j.due_at
)
select done.run_id,
       case when before.kind <> done.kind and done.due_at <= clock_timestamp()
            then pg_notify('boxrun_jobs', done.kind)::text end as woken
  from done join before on before.run_id = done.run_id
