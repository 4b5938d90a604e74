-- One text for every change of a run: $2 and $3 are what it must still be, the times are the database's and never go back.
update boxrun.runs r
   set state = $4::text,
       dispatch_attempted_at = case when $5 then t.at when $6 then null else r.dispatch_attempted_at end,
       probe_attempted_at = case when $7 then coalesce(r.probe_attempted_at, t.at) else r.probe_attempted_at end,
       box_checked_at = case when $8 then coalesce(r.box_checked_at, t.at) else r.box_checked_at end,
       pid = coalesce(r.pid, $9),
       exit_status = coalesce(r.exit_status, $10),
       exit_learnt_at = case when $10 is not null then coalesce(r.exit_learnt_at, t.at) else r.exit_learnt_at end,
       final_log_size = coalesce(r.final_log_size, $11),
       failure_reason = coalesce(r.failure_reason, $12),
       cancellation_effective_at = case when $13 then t.at else r.cancellation_effective_at end,
       end_verified_at = case when $14 then coalesce(r.end_verified_at, t.at) else r.end_verified_at end,
       cleanup_given_up_at = case when $15 then coalesce(r.cleanup_given_up_at, t.at) else r.cleanup_given_up_at end,
       directory_removed_at = case when $16 then coalesce(r.directory_removed_at, t.at) else r.directory_removed_at end,
       log_offset = case when $22 then 0 else r.log_offset + $17 end,
       log_epoch = r.log_epoch + $22::boolean::int,
       log_carried = coalesce($21, r.log_carried),
       progressed_at = case when $17 > 0 or $22 then t.at else r.progressed_at end,
       last_output_offset = $18,
       output_base_offset = $19,
       dispatched_at = case when $4 = 'dispatched' then coalesce(r.dispatched_at, t.at) else r.dispatched_at end,
       started_at = case when $4 = 'running' or (r.exit_status is null and $10 is not null)
                         then coalesce(r.started_at, t.at) else r.started_at end,
       timed_out = $4 = 'timed_out',
       finished_at = case when $20 then coalesce(r.finished_at, t.at) end,
       updated_at = t.at
  from (select greatest(clock_timestamp(), u.updated_at) as at from boxrun.runs u where u.id = $1) t
 where r.id = $1
   and r.state = $2::text
   and r.log_offset = $3
   and r.log_epoch = $23
   and r.updated_at <= t.at
   and (not $5 or (r.dispatch_attempted_at is null and r.cancellation_requested_at is null))
   and (not $6 or r.probe_attempted_at is null)
returning r.updated_at
