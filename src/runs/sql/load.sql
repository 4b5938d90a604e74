select r.id as "id: RunId", r.conversation_id as "conversation_id: ConversationId", r.box_id as "box_id: BoxId",
       r.principal_type, r.principal_id, r.command, r.idempotency_key, r.cwd,
       r.env as "env: Json<BTreeMap<String, String>>", r.run_directory, r.state as "state: RunState",
       r.exit_status, r.timed_out, r.failure_reason, r.pid, r.log_offset, r.log_carried, r.log_epoch, r.final_log_size, r.last_output_offset,
       r.output_base_offset, r.box_checked_at, r.admitted_at, r.dispatch_attempted_at, r.probe_attempted_at,
       r.dispatched_at, r.started_at, r.exit_learnt_at, r.progressed_at, r.finished_at, r.cancellation_requested_at,
       r.cancellation_effective_at, r.deadline_at, r.end_verified_at, r.has_secrets,
       r.updated_at,
       case when j.kind in ('start', 'poll') then j.due_at end as next_poll_at,
       j.last_seen_at as "last_seen_at?", j.attempts as "attempts?", j.last_error, j.last_error_code,
       j.leased_by as worker, clock_timestamp() as "read_at!"
  from boxrun.runs r
  left join boxrun.jobs j on j.run_id = r.id
 where r.id = any($1)
 order by r.id
