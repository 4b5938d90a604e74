-- The whole store of boxrun: what a run is, what may happen to it, and the job that drives it.
--
-- The rules are written down here a second time, against a careless UPDATE. The code names the state it expects in each
-- statement, so none of these guards fires in normal work. Constraint names are API: the code maps them to its errors.

create schema if not exists boxrun;

-- Nothing here is for everybody. `boxrun migrate --roles` makes the roles and grants what each needs.
revoke all on schema boxrun from public;
alter default privileges in schema boxrun revoke execute on functions from public;

-- ---------------------------------------------------------------------------------------------------------------------
-- The provider

create table boxrun.provider (
    only_row            boolean primary key default true constraint provider_only_row check (only_row),
    origin              text not null,          -- scheme, host and port of the box API, or 'simulator' under `boxrun up`
    requests_held_until timestamptz,            -- no request before: the provider's Retry-After, shared by all workers
    starts_held_until   timestamptz,            -- no dispatch before: the key was refused
    updated_at          timestamptz not null default clock_timestamp()
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Conversations and boxes

create table boxrun.conversations (
    id             uuid primary key,            -- chosen by the web app
    principal_type text not null constraint conversations_principal_type_length check (octet_length(principal_type) between 1 and 64),
    principal_id   text not null constraint conversations_principal_id_length check (octet_length(principal_id) <= 256),
    inserted_at    timestamptz not null default clock_timestamp()
);

create table boxrun.boxes (
    id              text primary key constraint boxes_id_format check (id ~ '^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$'),
    conversation_id uuid references boxrun.conversations (id),  -- null: detached
    attached_at     timestamptz,
    inserted_at     timestamptz not null default clock_timestamp()
);
create index boxes_conversation on boxrun.boxes (conversation_id);

-- ---------------------------------------------------------------------------------------------------------------------
-- Runs

create table boxrun.runs (
    id                        uuid primary key,
    conversation_id           uuid not null references boxrun.conversations (id),
    box_id                    text not null references boxrun.boxes (id),
    principal_type            text not null,    -- who asked: `user`, …
    principal_id              text,             -- null: not known
    command                   text not null,    -- shell text, 1 to 8000 bytes of UTF-8, not blank
    idempotency_key           text not null,    -- 1 to 256 bytes, unique in the conversation
    cwd                       text,             -- absolute, or relative to $HOME; null: where the provider starts commands
    env                       jsonb not null default '{}',  -- shown to everybody who may see the run
    run_directory             text not null,    -- on the box, with a literal $HOME; computed once

    state                     text not null default 'admitted',
    exit_status               smallint,         -- 0 to 255; known before the run is terminal while its log is still read
    timed_out                 boolean not null default false,
    failure_reason            text,             -- a stable code
    pid                       bigint,           -- of the wrapper on the box, when known

    log_offset                bigint not null default 0,  -- bytes of the log on the box that were released or skipped
    final_log_size            bigint,           -- bytes of the log when the exit was learnt
    last_output_offset        bigint not null default 0,  -- bytes of output released so far
    output_base_offset        bigint not null default 0,  -- the first byte of output that is still kept

    box_checked_at            timestamptz,      -- the provider said that the box takes commands; null: start asks
    admitted_at               timestamptz not null,
    dispatch_attempted_at     timestamptz,      -- the claim: from here on the command may have reached the box
    probe_attempted_at        timestamptz,      -- the box was asked for the run; from here on it is never dispatched again
    dispatched_at             timestamptz,
    started_at                timestamptz,      -- a poll saw it
    exit_learnt_at            timestamptz,
    progressed_at             timestamptz,      -- its log last brought something new
    finished_at               timestamptz,
    cancellation_requested_at timestamptz,
    cancellation_effective_at timestamptz,
    deadline_at               timestamptz not null,
    end_verified_at           timestamptz,      -- no process of the run is left on the box, or none ever was
    cleanup_given_up_at       timestamptz,      -- the box did not answer until the retention had passed
    directory_removed_at      timestamptz,
    inserted_at               timestamptz not null,
    updated_at                timestamptz not null,  -- never before any other time of the run but the deadline

    constraint runs_state_known check (state in
        ('admitted', 'dispatched', 'running', 'completed', 'failed', 'cancelled', 'timed_out', 'lost')),
    constraint runs_command_length check (octet_length(command) between 1 and 8000 and command ~ '[^[:space:]]'),
    constraint runs_idempotency_key_length check (octet_length(idempotency_key) between 1 and 256),
    constraint runs_env_is_map check (jsonb_typeof(env) = 'object'),
    constraint runs_exit_status_range check (exit_status between 0 and 255),
    constraint runs_failure_reason_format check (failure_reason ~ '^[a-z_]{1,64}$'),
    constraint runs_pid_range check (pid > 1),
    constraint runs_offsets_ordered check (
        log_offset >= 0 and output_base_offset >= 0 and output_base_offset <= last_output_offset),
    constraint runs_finished_iff_terminal check (
        (finished_at is not null) = (state in ('completed', 'failed', 'cancelled', 'timed_out', 'lost'))),
    constraint runs_timed_out_iff_state check (timed_out = (state = 'timed_out')),
    constraint runs_completed_exits_zero check (state <> 'completed'
        or (exit_status = 0 and exit_status is not null and failure_reason is null)),
    constraint runs_failed_says_why check (state <> 'failed' or (exit_status <> 0 and exit_status is not null)
        or (exit_status is null and failure_reason is not null)),
    constraint runs_lost_says_why check (state not in ('lost', 'timed_out') or failure_reason is not null),
    constraint runs_cancelled_has_times check (state <> 'cancelled'
        or (cancellation_requested_at is not null and cancellation_effective_at is not null)),
    constraint runs_cancellation_ordered check (cancellation_requested_at <= cancellation_effective_at),
    constraint runs_exit_learnt_at_known check ((exit_learnt_at is null) = (exit_status is null)),
    constraint runs_dispatched_after_claim check (dispatched_at is null or dispatch_attempted_at is not null)
);

create unique index runs_one_key_per_conversation on boxrun.runs (conversation_id, idempotency_key);
create unique index runs_one_active_per_box on boxrun.runs (box_id) where state in ('admitted', 'dispatched', 'running');
create index runs_newest_of_conversation on boxrun.runs (conversation_id, admitted_at desc, id desc);
create index runs_newest on boxrun.runs (admitted_at desc, id desc);
-- What reconcile looks at, and what a start on the same box waits for.
create index runs_active_by_deadline on boxrun.runs (deadline_at) where state in ('admitted', 'dispatched', 'running');
create index runs_unverified_end on boxrun.runs (box_id)
    where state in ('cancelled', 'timed_out', 'lost') and end_verified_at is null and dispatch_attempted_at is not null;

-- The newest part of a run's output, in pieces that follow each other; a poll only adds one.
create table boxrun.run_output (
    run_id       uuid not null references boxrun.runs (id) on delete cascade,
    start_offset bigint not null,               -- bytes of output before this piece
    text         text not null constraint run_output_not_empty check (octet_length(text) > 0),
    primary key (run_id, start_offset)
);

-- The timeline of a run, append-only: what happened, when, by which worker, what the box said.
create table boxrun.run_events (
    id     bigint generated always as identity primary key,
    run_id uuid not null references boxrun.runs (id) on delete cascade,
    at     timestamptz not null default clock_timestamp(),
    event  text not null constraint run_events_event_format check (event ~ '^[a-z_]{1,64}$'),
    worker text,                                -- null: a caller, not a worker
    detail jsonb not null default '{}'
);
create index run_events_of_run on boxrun.run_events (run_id, id);

-- ---------------------------------------------------------------------------------------------------------------------
-- Jobs: one driving job a run

create table boxrun.jobs (
    run_id         uuid primary key references boxrun.runs (id) on delete cascade,
    kind           text not null constraint jobs_kind_known check (kind in ('start', 'poll', 'stop', 'cleanup')),
    due_at         timestamptz not null default clock_timestamp(),
    lease          uuid,                        -- held by whoever acts for the run; fresh at each claim
    lease_until    timestamptz,                 -- then anybody may claim it again
    leased_by      text,                        -- the worker, for people; the lease alone decides
    -- When a row may be claimed: due, and not leased. The claim's index is on it.
    claimable_at   timestamptz not null generated always as (greatest(due_at, lease_until)) stored,
    urgent         boolean not null default false,  -- asked to stop while leased: the owner's finish makes it a stop, due now
    attempts       integer not null default 0,  -- failures since the last usable answer
    last_error     text,                        -- for people
    last_error_code text,                       -- a stable code
    last_seen_at   timestamptz,                 -- when the box last gave a usable answer
    poll_max_bytes bigint,                      -- smaller than usual after the provider cut an answer
    inserted_at    timestamptz not null default clock_timestamp(),
    constraint jobs_lease_whole check ((lease is null) = (lease_until is null) and (lease is null) = (leased_by is null)),
    constraint jobs_attempts_not_negative check (attempts >= 0)
);
create index jobs_claimable on boxrun.jobs (kind, claimable_at);

-- Worker processes that live, for people and for the dashboard. No decision is taken from it.
create table boxrun.workers (
    id           text primary key,              -- host, process and a fresh random part: new at each start
    host         text not null,
    version      text not null,
    started_at   timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    stopping     boolean not null default false
);

create table boxrun.api_tokens (
    id             uuid primary key,
    token_sha256   bytea not null unique constraint api_tokens_sha256_length check (octet_length(token_sha256) = 32),
    principal_type text not null,
    principal_id   text not null,
    scopes         text[] not null,
    expires_at     timestamptz,
    revoked_at     timestamptz,
    inserted_at    timestamptz not null default clock_timestamp()
);

-- ---------------------------------------------------------------------------------------------------------------------
-- The guard: what an UPDATE of a run may do

create function boxrun.is_terminal(state text) returns boolean
language sql immutable parallel safe as $$
    select state in ('completed', 'failed', 'cancelled', 'timed_out', 'lost')
$$;

create function boxrun.guard_run() returns trigger
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

    if new.log_offset < old.log_offset or new.last_output_offset < old.last_output_offset
       or new.output_base_offset < old.output_base_offset then
        raise exception 'offsets of run % never fall', old.id
            using errcode = 'check_violation', constraint = 'runs_offsets_never_fall';
    end if;
    return new;
end
$$;

create trigger guard_run before update on boxrun.runs for each row execute function boxrun.guard_run();

-- ---------------------------------------------------------------------------------------------------------------------
-- Who is told: `boxrun_runs` hears each change of state, `boxrun_jobs` each job that is due at once. Both only speed
-- things up; whoever listens also looks by itself.

create function boxrun.notify_run_state() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_notify('boxrun_runs', json_build_object('run_id', new.id, 'state', new.state)::text);
    return null;
end
$$;

create trigger notify_run_admitted after insert on boxrun.runs
    for each row execute function boxrun.notify_run_state();
create trigger notify_run_state after update of state on boxrun.runs
    for each row when (old.state is distinct from new.state) execute function boxrun.notify_run_state();

create function boxrun.notify_job() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_notify('boxrun_jobs', new.kind);
    return null;
end
$$;

create trigger notify_new_job after insert on boxrun.jobs
    for each row execute function boxrun.notify_job();

-- ---------------------------------------------------------------------------------------------------------------------
-- Admission and cancel: one text for every way in (Rust, HTTP, SQL)

-- A version 7 UUID: ordered by time, so that new runs stand together in the indexes.
create function boxrun.new_run_id() returns uuid
language sql volatile set search_path = pg_catalog, pg_temp as $$
    select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
        52, 1), 53, 1), 'hex')::uuid
$$;

-- $HOME/.openagents/box-runs/users/<segment>/<run id>: every byte of the principal's id outside [A-Za-z0-9_-] becomes
-- `-`, cut at 64 bytes; `unknown` when there is none.
create function boxrun.run_directory(principal_id text, run_id uuid) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
    select '$HOME/.openagents/box-runs/users/' || coalesce(
        (select string_agg(case when chr(b) ~ '[A-Za-z0-9_-]' and b < 128 then chr(b) else '-' end, '' order by i)
           from (select i, get_byte(convert_to(principal_id, 'UTF8'), i) as b
                   from generate_series(0, least(octet_length(convert_to(principal_id, 'UTF8')), 64) - 1) as i) bytes
          where b <> 0),
        'unknown') || '/' || run_id::text
$$;

-- Admits a run inside the caller's transaction. `outcome` is 'admitted', 'existing' (an exact repeat), or the stable
-- code of a refusal; nothing is raised, so that a refusal leaves the caller's transaction alive.
create function boxrun.admit_run(
    p_conversation_id uuid, p_box_id text, p_principal_type text, p_principal_id text, p_command text,
    p_idempotency_key text, p_cwd text, p_env jsonb, p_max_duration interval, p_box_checked boolean,
    out outcome text, out run_id uuid)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    other boxrun.runs;
    at    timestamptz;
begin
    -- An exact repeat gets its run whatever its state, also while the provider is down or the box detached.
    select * into other from boxrun.runs r
     where r.conversation_id = p_conversation_id and r.idempotency_key = p_idempotency_key;
    if found and other.box_id = p_box_id and other.command = p_command then
        outcome := 'existing'; run_id := other.id; return;
    end if;

    -- The lock keeps the box attached until the caller commits.
    perform 1 from boxrun.boxes b where b.id = p_box_id and b.conversation_id = p_conversation_id for share;
    if not found then
        outcome := 'box_not_owned'; return;
    end if;

    -- Bounded: each turn that finds nothing means that a rival ended between two statements.
    for turn in 1 .. 20 loop
        at := clock_timestamp();
        run_id := boxrun.new_run_id();
        insert into boxrun.runs (id, conversation_id, box_id, principal_type, principal_id, command, idempotency_key,
                                 cwd, env, run_directory, box_checked_at, admitted_at, deadline_at, inserted_at, updated_at)
        values (run_id, p_conversation_id, p_box_id, p_principal_type, p_principal_id, p_command, p_idempotency_key,
                p_cwd, p_env, boxrun.run_directory(p_principal_id, run_id),
                case when p_box_checked then at end, at, at + p_max_duration, at, at)
        on conflict do nothing;
        if found then
            insert into boxrun.run_events (run_id, at, event, detail)
            values (run_id, at, 'admitted', jsonb_build_object('box_checked', p_box_checked));
            insert into boxrun.jobs (run_id, kind, due_at) values (run_id, 'start', at);
            outcome := 'admitted'; return;
        end if;

        select * into other from boxrun.runs r
         where r.conversation_id = p_conversation_id and r.idempotency_key = p_idempotency_key;
        if found then
            run_id := other.id;
            outcome := case when other.box_id = p_box_id and other.command = p_command
                            then 'existing' else 'box_run_idempotency_conflict' end;
            return;
        end if;
        select * into other from boxrun.runs r
         where r.box_id = p_box_id and r.state in ('admitted', 'dispatched', 'running');
        if found then
            run_id := other.id; outcome := 'box_run_in_progress'; return;
        end if;
    end loop;
    run_id := null; outcome := 'busy';
end
$$;

-- Asks a run to end, inside the caller's transaction. Run first, then job. A terminal run stays as it is.
create function boxrun.request_cancel(p_run_id uuid) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    run boxrun.runs;
    at  timestamptz;
begin
    select * into run from boxrun.runs r where r.id = p_run_id for update;
    if not found or boxrun.is_terminal(run.state) or run.cancellation_requested_at is not null then
        return;
    end if;
    at := greatest(clock_timestamp(), run.updated_at);
    insert into boxrun.run_events (run_id, at, event) values (p_run_id, at, 'cancel_requested');

    if run.dispatch_attempted_at is null then
        -- Nothing was sent: it ends here and now. A start that holds the lease finds it terminal when it claims.
        update boxrun.runs set state = 'cancelled', cancellation_requested_at = at, cancellation_effective_at = at,
               finished_at = at, end_verified_at = at, updated_at = at
         where id = p_run_id;
        insert into boxrun.run_events (run_id, at, event) values (p_run_id, at, 'cancelled');
        delete from boxrun.jobs j where j.run_id = p_run_id and (j.lease is null or j.lease_until <= clock_timestamp());
        return;
    end if;

    update boxrun.runs set cancellation_requested_at = at, updated_at = at where id = p_run_id;
    if run.exit_status is not null then
        return;  -- its end is known; what is left is reading its output
    end if;
    -- A job that is leased: its owner is told. The conflicting row stays locked, so what was seen of it still holds.
    insert into boxrun.jobs as j (run_id, kind, due_at) values (p_run_id, 'stop', at)
    on conflict (run_id) do update set urgent = true where j.lease_until > clock_timestamp();
    if not found then
        update boxrun.jobs j set kind = 'stop', due_at = at, attempts = 0, lease = null, lease_until = null, leased_by = null
         where j.run_id = p_run_id;
    end if;
    perform pg_notify('boxrun_jobs', 'cancel:' || p_run_id::text);
end
$$;

comment on table boxrun.runs is 'One command on one box: the durable record';
comment on table boxrun.jobs is 'The one driving job of a run: start, poll, stop, cleanup. Rows may be deleted: reconcile restores those of live runs';
