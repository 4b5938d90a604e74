-- The SQL way in: functions that a web app calls inside its own transaction. docs/sql.md is their manual.
--
-- They are built on `boxrun.admit_run` and `boxrun.request_cancel`, as the other ways in are, and add what those leave
-- to their callers: the checks of what was asked for (as src/runs/admission.rs has them; a test holds the two together)
-- and refusals as errors. They run with the rights of the schema's owner, so every name in them is qualified and their
-- search_path is pinned; what follows from a caller's own settings is pinned where it matters.

-- ---------------------------------------------------------------------------------------------------------------------
-- What a deployment has set, as far as SQL has to know it: a function has no environment

create table boxrun.settings (
    only_row             boolean primary key default true constraint settings_only_row check (only_row),
    -- The longest deadline after admission, and the one where nothing is asked for: BOXRUN_MAX_DURATION_SECONDS of the
    -- worker that started last.
    max_duration_seconds integer not null default 1800
        constraint settings_max_duration_seconds_range check (max_duration_seconds between 1 and 31536000),
    updated_at           timestamptz not null default clock_timestamp()
);
insert into boxrun.settings default values;

-- ---------------------------------------------------------------------------------------------------------------------
-- What is shown

-- A run, with the same fields as by HTTP and in the same order.
create type boxrun.run as (
    id                        uuid,
    conversation_id           uuid,
    box_id                    text,
    principal                 jsonb,            -- who asked: {"type", "id"}
    idempotency_key           text,
    command                   text,             -- masked
    cwd                       text,
    env                       jsonb,            -- values masked
    state                     text,
    exit_status               smallint,         -- null until the run is terminal
    timed_out                 boolean,
    output_offset             bigint,           -- bytes of output released so far
    output_base_offset        bigint,           -- the first byte of output that is still kept
    failure_reason            text,
    admitted_at               timestamptz,
    dispatched_at             timestamptz,
    started_at                timestamptz,
    finished_at               timestamptz,
    deadline_at               timestamptz,
    cancellation_requested_at timestamptz,
    cancellation_effective_at timestamptz,
    -- From its job; null once the job is gone.
    last_seen_at              timestamptz,
    next_poll_at              timestamptz,
    attempts                  integer,
    last_error                text,             -- masked
    worker                    text
);

create type boxrun.attached_box as (
    id              text,
    conversation_id uuid,
    attached_at     timestamptz
);

-- What is kept of a run's output from an offset on; all offsets count bytes of UTF-8.
create type boxrun.output as (
    output             text,                    -- from the greater of "offset" and output_base_offset on
    "offset"           bigint,                  -- as asked
    next_offset        bigint,                  -- where to read on
    output_base_offset bigint,                  -- the first byte that is still kept
    truncated          boolean                  -- whether bytes between "offset" and the text are gone
);

-- Masks what has the shape of a secret, by the rules of src/runs/masking.rs. What it can't know is the key of the box
-- API: that one is masked by value in Rust alone, and is in no database.
create function boxrun.mask(p_text text) returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
    select regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(p_text,
        -- A URL with user and password, and the provider's own URLs: whole.
        '\m[a-z][a-z0-9+.-]{0,15}://[^\s/@:"''<>]*:[^\s/@"''<>]+@[^\s"''<>]*', '[REDACTED_URL]', 'gi'),
        '\mhttps://(?:desktop|viewer)\.ascii\.dev[^\s"''<>]*', '[REDACTED_URL]', 'gi'),
        -- A URL whose query names a secret: everything from `?` on.
        '\m([a-z][a-z0-9+.-]{0,15}://[^\s?"''<>]*)\?(?:[^\s"''<>]*&)?(?:token|access[_-]token|api[_-]key|auth[_-]token|'
        || 'authentication[_-]token|secret|credential)=[^\s"''<>]*', '\1?[REDACTED]', 'gi'),
        '\m(authorization\s*:\s*)[^\r\n]+', '\1[REDACTED]', 'gi'),
        -- Well-known shapes, each with a literal prefix, not after a letter or digit.
        '(^|[^A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}|'
        || 'sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|'
        || 'npm_[A-Za-z0-9]{36})',
        '\1[REDACTED]', 'g')
$$;

-- Each run as it is shown: one text for all functions, and nobody's but the owner's own.
create view boxrun.shown_runs as
    select r.id, r.conversation_id, r.box_id,
           jsonb_build_object('type', r.principal_type, 'id', coalesce(r.principal_id, '')) as principal,
           r.idempotency_key, boxrun.mask(r.command) as command, r.cwd,
           (select coalesce(jsonb_object_agg(e.key, boxrun.mask(e.value)), '{}') from jsonb_each_text(r.env) e) as env,
           r.state,
           -- Before the run is terminal its exit may be known already; it is shown with the state that it leads to.
           case when boxrun.is_terminal(r.state) then r.exit_status end as exit_status,
           r.timed_out, r.last_output_offset as output_offset, r.output_base_offset, r.failure_reason, r.admitted_at,
           r.dispatched_at, r.started_at, r.finished_at, r.deadline_at, r.cancellation_requested_at,
           r.cancellation_effective_at, j.last_seen_at,
           case when j.kind in ('start', 'poll') then j.due_at end as next_poll_at,
           j.attempts, boxrun.mask(j.last_error) as last_error, j.leased_by as worker
      from boxrun.runs r
      left join boxrun.jobs j on j.run_id = r.id;

-- ---------------------------------------------------------------------------------------------------------------------
-- Refusals and checks; not for callers

-- Refuses: an error whose message is the stable code. The SQLSTATEs are API, as the codes are: new ones are added, none
-- is given another meaning.
create function boxrun.refuse(p_code text, p_problem text, p_remedy text) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using message = p_code, detail = p_problem, hint = p_remedy, errcode = case p_code
        when 'invalid_command'              then 'BX001'
        when 'invalid_idempotency_key'      then 'BX002'
        when 'invalid_max_duration'         then 'BX003'
        when 'invalid_box_id'               then 'BX004'
        when 'invalid_output_offset'        then 'BX005'
        when 'invalid_request'              then 'BX006'
        when 'conversation_not_found'       then 'BX101'
        when 'box_not_found'                then 'BX102'
        when 'box_not_owned'                then 'BX103'
        when 'box_run_not_found'            then 'BX104'
        when 'box_run_in_progress'          then 'BX201'
        when 'box_run_idempotency_conflict' then 'BX202'
        when 'box_already_attached'         then 'BX203'
        when 'busy'                         then 'BX301'
    end;
end
$$;

create function boxrun.check_conversation_id(p_conversation_id uuid) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if p_conversation_id is null then
        perform boxrun.refuse('invalid_request', 'conversation_id: it is null', 'Name a conversation by its UUID.');
    end if;
end
$$;

create function boxrun.check_box_id(p_box_id text) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if p_box_id is null or p_box_id !~ '^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$' then
        perform boxrun.refuse('invalid_box_id', format('%s is no box id.', coalesce(quote_literal(p_box_id), 'null')),
            'A box id is bx_ and eight characters of 23456789abcdefghjkmnpqrstuvwxyz, for example bx_8bhkse3n.');
    end if;
end
$$;

create function boxrun.check_principal(p_principal jsonb) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if p_principal is null
       or jsonb_typeof(p_principal) <> 'object'
       or jsonb_typeof(p_principal -> 'type') is distinct from 'string'
       or jsonb_typeof(p_principal -> 'id') is distinct from 'string'
       or octet_length(p_principal ->> 'type') not between 1 and 64
       or octet_length(p_principal ->> 'id') > 256 then
        perform boxrun.refuse('invalid_request',
            'principal: it has a type of 1 to 64 bytes and an id of at most 256 bytes, both text',
            'For example {"type": "user", "id": "u1"}.');
    end if;
end
$$;

-- Checks what a run is asked for with, in the order of src/runs/admission.rs, and returns how long it may last.
create function boxrun.check_new_run(
    p_command text, p_idempotency_key text, p_principal jsonb, p_cwd text, p_env jsonb, p_max_duration_seconds integer)
returns interval
language plpgsql volatile
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    problem           text;
    variable          record;
    env_bytes         bigint := 0;
    max_seconds       integer;
begin
    problem := case
        when p_command is null then 'There is none.'
        -- Blank as Unicode has it, whatever the database's locale.
        when p_command !~ '[^\u0009-\u000D\u0020\u0085\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]'
            then 'This one is blank.'
        when octet_length(p_command) > 8000 then format('This one has %s bytes.', octet_length(p_command))
    end;
    if problem is not null then
        perform boxrun.refuse('invalid_command', problem, 'A command is 1 to 8000 bytes of shell text, not blank.');
    end if;

    problem := case
        when p_idempotency_key is null then 'There is none.'
        when p_idempotency_key = '' then 'This one is empty.'
        when octet_length(p_idempotency_key) > 256
            then format('This one has %s bytes.', octet_length(p_idempotency_key))
    end;
    if problem is not null then
        perform boxrun.refuse('invalid_idempotency_key', problem, 'An idempotency key is 1 to 256 bytes.');
    end if;

    perform boxrun.check_principal(p_principal);

    if p_cwd = '' or position(E'\n' in p_cwd) > 0 or octet_length(p_cwd) > 4096 then
        perform boxrun.refuse('invalid_request', 'cwd: a directory is 1 to 4096 bytes, without newline',
            'Give a path that is absolute, or relative to $HOME on the box.');
    end if;

    if jsonb_typeof(p_env) <> 'object' then
        perform boxrun.refuse('invalid_request', 'env: it is a JSON object of names and texts',
            'For example {"CI": "true"}.');
    end if;
    for variable in select e.key, e.value, jsonb_typeof(e.value) as type from jsonb_each(p_env) e loop
        if variable.key !~ '^[A-Za-z_][A-Za-z0-9_]*$' or starts_with(variable.key, 'BOXRUN_') then
            perform boxrun.refuse('invalid_request',
                format('env: %s is no name for a variable', quote_literal(left(variable.key, 100))),
                'A name is letters, digits and _, and does not begin with BOXRUN_.');
        end if;
        if variable.type <> 'string' then
            perform boxrun.refuse('invalid_request', format('env: the value of %s is no text', variable.key),
                'Write numbers and booleans as text.');
        end if;
        env_bytes := env_bytes + octet_length(variable.key) + octet_length(variable.value #>> '{}');
    end loop;
    if env_bytes > 32 * 1024 then
        perform boxrun.refuse('invalid_request', 'env: names and values have 32 KiB together at most',
            'Put large values into a file on the box.');
    end if;

    select s.max_duration_seconds into max_seconds from boxrun.settings s;
    max_seconds := coalesce(max_seconds, 1800);
    if p_max_duration_seconds not between 1 and max_seconds then
        perform boxrun.refuse('invalid_max_duration',
            format('A run may last 1 to %s seconds, %s were asked for.', max_seconds, p_max_duration_seconds),
            'Ask for less; the limit is BOXRUN_MAX_DURATION_SECONDS of the workers.');
    end if;
    return make_interval(secs => coalesce(p_max_duration_seconds, max_seconds));
end
$$;

-- One run of a conversation as it is shown; a foreign run and a missing one look alike.
create function boxrun.shown_run(p_conversation_id uuid, p_run_id uuid) returns boxrun.run
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    shown boxrun.run;
begin
    select v.* into shown from boxrun.shown_runs v where v.id = p_run_id and v.conversation_id = p_conversation_id;
    if not found then
        perform boxrun.refuse('box_run_not_found', 'There is no such run in this conversation.',
            'list_runs shows the runs of a conversation.');
    end if;
    return shown;
end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- The functions for callers. The names of their arguments are API.

create function boxrun.start_run(
    conversation_id uuid, box_id text, principal jsonb, command text, idempotency_key text,
    max_duration_seconds integer default null, cwd text default null, env jsonb default '{}')
returns boxrun.run
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    max_duration interval;
    admission    record;
begin
    perform boxrun.check_conversation_id(start_run.conversation_id);
    perform boxrun.check_box_id(start_run.box_id);
    max_duration := boxrun.check_new_run(start_run.command, start_run.idempotency_key, start_run.principal,
                                         start_run.cwd, start_run.env, start_run.max_duration_seconds);
    select a.outcome, a.run_id into admission
      from boxrun.admit_run(start_run.conversation_id, start_run.box_id, start_run.principal ->> 'type',
                            start_run.principal ->> 'id', start_run.command, start_run.idempotency_key, start_run.cwd,
                            coalesce(start_run.env, '{}'), max_duration, false) a;
    case admission.outcome
        when 'admitted', 'existing' then
            return boxrun.shown_run(start_run.conversation_id, admission.run_id);
        when 'box_not_owned' then
            perform boxrun.refuse('box_not_owned',
                format('Box %s is not attached to this conversation.', start_run.box_id), 'Attach it with attach_box.');
        when 'box_run_idempotency_conflict' then
            perform boxrun.refuse('box_run_idempotency_conflict',
                format('The key was used by run %s for another box or command.', admission.run_id),
                'Choose another key; a repeat has the same box and command.');
        when 'box_run_in_progress' then
            perform boxrun.refuse('box_run_in_progress',
                format('Run %s is active on box %s.', admission.run_id, start_run.box_id),
                'Wait for it, or cancel it with cancel_run.');
        else
            perform boxrun.refuse('busy', 'There are too many rivals for this key or box.', 'Try again.');
    end case;
end
$$;

create function boxrun.attach_box(conversation_id uuid, box_id text, principal jsonb) returns boxrun.attached_box
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    holder   record;
    attached boxrun.attached_box;
begin
    perform boxrun.check_conversation_id(attach_box.conversation_id);
    perform boxrun.check_box_id(attach_box.box_id);
    perform boxrun.check_principal(attach_box.principal);

    insert into boxrun.conversations as c (id, principal_type, principal_id)
    values (attach_box.conversation_id, attach_box.principal ->> 'type', attach_box.principal ->> 'id')
    on conflict do nothing;
    perform 1 from boxrun.conversations c
      where c.id = attach_box.conversation_id
        and c.principal_type = attach_box.principal ->> 'type' and c.principal_id = attach_box.principal ->> 'id';
    if not found then
        perform boxrun.refuse('conversation_not_found', 'There is no such conversation of this principal.',
            'Use the principal that the conversation was made with, or another conversation.');
    end if;

    insert into boxrun.boxes as b (id, conversation_id, attached_at)
    values (attach_box.box_id, attach_box.conversation_id, clock_timestamp())
    on conflict (id) do update set conversation_id = excluded.conversation_id, attached_at = excluded.attached_at
     where b.conversation_id is null;

    select b.id, b.conversation_id, b.attached_at, c.principal_type, c.principal_id into holder
      from boxrun.boxes b join boxrun.conversations c on c.id = b.conversation_id where b.id = attach_box.box_id;
    if holder.conversation_id = attach_box.conversation_id then
        attached := row(holder.id, holder.conversation_id, holder.attached_at);
        return attached;
    end if;
    if holder.principal_type = attach_box.principal ->> 'type'
       and holder.principal_id = attach_box.principal ->> 'id' then
        perform boxrun.refuse('box_already_attached',
            format('Box %s is attached to conversation %s.', holder.id, holder.conversation_id),
            'Detach it there with detach_box first.');
    end if;
    perform boxrun.refuse('box_not_found', 'There is no such box for this principal.', 'Use a box of your own.');
end
$$;

create function boxrun.detach_box(conversation_id uuid, box_id text, principal jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    active uuid;
begin
    perform boxrun.check_box_id(detach_box.box_id);
    perform boxrun.check_principal(detach_box.principal);
    perform 1 from boxrun.boxes b join boxrun.conversations c on c.id = b.conversation_id
      where b.id = detach_box.box_id and c.id = detach_box.conversation_id
        and c.principal_type = detach_box.principal ->> 'type' and c.principal_id = detach_box.principal ->> 'id'
        for update of b;
    if not found then
        perform boxrun.refuse('box_not_found', 'There is no such box in this conversation of this principal.',
            'attach_box says where a box is attached.');
    end if;
    select r.id into active from boxrun.runs r
     where r.box_id = detach_box.box_id and r.state in ('admitted', 'dispatched', 'running');
    if found then
        perform boxrun.refuse('box_run_in_progress', format('Run %s is active on box %s.', active, detach_box.box_id),
            'Wait for it, or cancel it with cancel_run.');
    end if;
    update boxrun.boxes b set conversation_id = null, attached_at = null where b.id = detach_box.box_id;
end
$$;

create function boxrun.get_run(conversation_id uuid, run_id uuid) returns boxrun.run
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return boxrun.shown_run(get_run.conversation_id, get_run.run_id);
end
$$;

-- Newest first. `after` is the id of the last run of the page before.
create function boxrun.list_runs(
    conversation_id uuid, state text default null, box_id text default null, idempotency_key text default null,
    "limit" integer default 50, after uuid default null)
returns setof boxrun.run
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    last_at timestamptz;
begin
    if list_runs.state not in
       ('admitted', 'dispatched', 'running', 'completed', 'failed', 'cancelled', 'timed_out', 'lost') then
        perform boxrun.refuse('invalid_request',
            format('state: there is no state %s', quote_literal(left(list_runs.state, 100))),
            'The states are admitted, dispatched, running, completed, failed, cancelled, timed_out, lost.');
    end if;
    if list_runs.box_id is not null then
        perform boxrun.check_box_id(list_runs.box_id);
    end if;
    if coalesce(list_runs."limit" not between 1 and 1000, true) then
        perform boxrun.refuse('invalid_request', 'limit: it is 1 to 1000', 'Read on from the last run with after.');
    end if;
    if list_runs.after is not null then
        select r.admitted_at into last_at from boxrun.runs r
         where r.id = list_runs.after and r.conversation_id = list_runs.conversation_id;
        if not found then
            perform boxrun.refuse('invalid_request', 'after: there is no such run in this conversation',
                'It is the id of the last run of the page before.');
        end if;
    end if;
    return query
        select v.* from boxrun.shown_runs v
         where v.conversation_id = list_runs.conversation_id
           and (list_runs.state is null or v.state = list_runs.state)
           and (list_runs.box_id is null or v.box_id = list_runs.box_id)
           and (list_runs.idempotency_key is null or v.idempotency_key = list_runs.idempotency_key)
           and (last_at is null or (v.admitted_at, v.id) < (last_at, list_runs.after))
         order by v.admitted_at desc, v.id desc
         limit list_runs."limit";
end
$$;

create function boxrun.cancel_run(conversation_id uuid, run_id uuid, principal jsonb) returns boxrun.run
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    run boxrun.runs;
begin
    perform boxrun.check_principal(cancel_run.principal);
    perform boxrun.shown_run(cancel_run.conversation_id, cancel_run.run_id);
    -- Locked, so that what is seen of it still holds when it is asked to end.
    select * into run from boxrun.runs r where r.id = cancel_run.run_id for update;
    perform boxrun.request_cancel(cancel_run.run_id);
    if not boxrun.is_terminal(run.state) and run.cancellation_requested_at is null then
        -- It was this call that asked: the line just written to the timeline says who, before anybody can read it.
        update boxrun.run_events e
           set detail = e.detail || jsonb_build_object('principal', jsonb_build_object(
                   'type', cancel_run.principal ->> 'type', 'id', cancel_run.principal ->> 'id'))
         where e.run_id = cancel_run.run_id and e.event = 'cancel_requested';
    end if;
    return boxrun.shown_run(cancel_run.conversation_id, cancel_run.run_id);
end
$$;

-- The end of a text from a byte on; a place inside a character counts as the start of the next one.
create function boxrun.text_from_byte(p_text text, p_skip bigint) returns text
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    bytes bytea;
    at    integer;
begin
    if p_skip <= 0 then
        return p_text;
    end if;
    bytes := convert_to(p_text, 'UTF8');
    at := least(p_skip, octet_length(bytes));
    while at < octet_length(bytes) and get_byte(bytes, at) & 192 = 128 loop
        at := at + 1;
    end loop;
    return convert_from(substring(bytes from at + 1), 'UTF8');
end
$$;

create function boxrun.read_output(conversation_id uuid, run_id uuid, from_offset bigint default 0)
returns boxrun.output
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    run  record;
    kept text;
begin
    if coalesce(read_output.from_offset < 0, true) then
        perform boxrun.refuse('invalid_output_offset', 'from_offset: it is a number of bytes, 0 or more',
            'Begin with 0 and read on from next_offset.');
    end if;
    select r.last_output_offset, r.output_base_offset, greatest(read_output.from_offset, r.output_base_offset) as start
      into run
      from boxrun.runs r where r.id = read_output.run_id and r.conversation_id = read_output.conversation_id;
    if not found then
        perform boxrun.shown_run(read_output.conversation_id, read_output.run_id);
    end if;
    -- Stable: both statements see the run as of one moment, so that offsets and text belong together.
    select string_agg(boxrun.text_from_byte(o.text, run.start - o.start_offset), '' order by o.start_offset) into kept
      from boxrun.run_output o
     where o.run_id = read_output.run_id
       and o.start_offset >= coalesce((select max(p.start_offset) from boxrun.run_output p
                                        where p.run_id = read_output.run_id and p.start_offset <= run.start), 0)
       and o.start_offset + octet_length(o.text) > run.start;
    return row(coalesce(kept, ''), read_output.from_offset, run.last_output_offset, run.output_base_offset,
               read_output.from_offset < run.output_base_offset)::boxrun.output;
end
$$;

comment on function boxrun.start_run is
    'Admits a run inside the caller''s transaction; an exact repeat returns the run there is';
comment on function boxrun.attach_box is 'Attaches a box to a conversation, which is made where there is none';
comment on function boxrun.detach_box is 'Detaches a box; refused while a run is active on it';
comment on function boxrun.get_run is 'One run of a conversation';
comment on function boxrun.list_runs is 'The runs of a conversation, newest first';
comment on function boxrun.cancel_run is
    'Asks a run to end, inside the caller''s transaction; a terminal run stays as it is';
comment on function boxrun.read_output is 'What is kept of a run''s output from a byte on';

-- PostgreSQL lets everybody execute a new function, and default rights of one schema can't take that back (the line in
-- 0001 that tries to has no effect): each migration that makes functions ends like this.
revoke execute on all functions in schema boxrun from public;
