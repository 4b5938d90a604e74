-- What reading a log needs to remember besides its offset, and logs that begin anew.

alter table boxrun.runs add column log_carried text not null default ''
    constraint runs_log_carried_format check (log_carried ~ '^[a-z0-9_ ]{0,100}$');
comment on column boxrun.runs.log_carried is
    'What came before log_offset, in a few words: a letter, a URL, a match that is being dropped. Never a piece of the log; empty: a text begins';

alter table boxrun.runs add column log_epoch bigint not null default 0;
comment on column boxrun.runs.log_epoch is 'How often the log shrank or was replaced, and was read again from its start';

create or replace function boxrun.guard_run() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if boxrun.is_terminal(old.state) then
        if to_jsonb(new) - array['end_verified_at', 'cleanup_given_up_at', 'directory_removed_at', 'updated_at']
           is distinct from
           to_jsonb(old) - array['end_verified_at', 'cleanup_given_up_at', 'directory_removed_at', 'updated_at'] then
            raise exception 'run % is % and changes no more', old.id, old.state
                using errcode = 'check_violation', constraint = 'runs_terminal_is_final';
        end if;
        return new;
    end if;

    if new.state <> old.state
       and not boxrun.is_terminal(new.state)
       and (old.state, new.state) not in
           (('admitted', 'dispatched'), ('admitted', 'running'), ('dispatched', 'running')) then
        raise exception 'a run does not go from % to %', old.state, new.state
            using errcode = 'check_violation', constraint = 'runs_transition_known';
    end if;

    if (new.id, new.conversation_id, new.box_id, new.principal_type, new.command, new.idempotency_key,
        new.run_directory, new.env, new.admitted_at, new.inserted_at)
       is distinct from
       (old.id, old.conversation_id, old.box_id, old.principal_type, old.command, old.idempotency_key,
        old.run_directory, old.env, old.admitted_at, old.inserted_at)
       or new.principal_id is distinct from old.principal_id or new.cwd is distinct from old.cwd then
        raise exception 'what run % is does not change', old.id
            using errcode = 'check_violation', constraint = 'runs_identity_is_fixed';
    end if;

    if old.probe_attempted_at is distinct from new.probe_attempted_at and old.probe_attempted_at is not null
       or old.dispatched_at is distinct from new.dispatched_at and old.dispatched_at is not null
       or old.started_at is distinct from new.started_at and old.started_at is not null
       or old.exit_status is distinct from new.exit_status and old.exit_status is not null
       or old.exit_learnt_at is distinct from new.exit_learnt_at and old.exit_learnt_at is not null
       or old.cancellation_requested_at is distinct from new.cancellation_requested_at
          and old.cancellation_requested_at is not null then
        raise exception 'what happened to run % once is not written again', old.id
            using errcode = 'check_violation', constraint = 'runs_times_are_set_once';
    end if;

    if old.dispatch_attempted_at is not null and new.dispatch_attempted_at is distinct from old.dispatch_attempted_at
       and not (new.dispatch_attempted_at is null and old.state = 'admitted' and new.state = 'admitted'
                and old.probe_attempted_at is null and new.probe_attempted_at is null) then
        raise exception 'the dispatch claim of run % is released only while it is admitted and unprobed', old.id
            using errcode = 'check_violation', constraint = 'runs_claim_is_kept';
    end if;

    -- A log that begins anew is read from its start; what was released of it before stays.
    if (new.log_epoch, new.log_offset) < (old.log_epoch, old.log_offset) or new.last_output_offset < old.last_output_offset
       or new.output_base_offset < old.output_base_offset then
        raise exception 'offsets of run % never fall', old.id
            using errcode = 'check_violation', constraint = 'runs_offsets_never_fall';
    end if;
    return new;
end
$$;
