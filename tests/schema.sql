CREATE SCHEMA boxrun;

CREATE TYPE boxrun.attached_box AS (
	id text,
	conversation_id uuid,
	attached_at timestamp with time zone
);

CREATE TYPE boxrun.output AS (
	output text,
	"offset" bigint,
	next_offset bigint,
	output_base_offset bigint,
	truncated boolean
);

CREATE TYPE boxrun.run AS (
	id uuid,
	conversation_id uuid,
	box_id text,
	principal jsonb,
	idempotency_key text,
	command text,
	cwd text,
	env jsonb,
	state text,
	exit_status smallint,
	timed_out boolean,
	output_offset bigint,
	output_base_offset bigint,
	failure_reason text,
	admitted_at timestamp with time zone,
	dispatched_at timestamp with time zone,
	started_at timestamp with time zone,
	finished_at timestamp with time zone,
	deadline_at timestamp with time zone,
	cancellation_requested_at timestamp with time zone,
	cancellation_effective_at timestamp with time zone,
	last_seen_at timestamp with time zone,
	next_poll_at timestamp with time zone,
	attempts integer,
	last_error text,
	worker text
);

CREATE FUNCTION boxrun.admit_run(p_conversation_id uuid, p_box_id text, p_principal_type text, p_principal_id text, p_command text, p_idempotency_key text, p_cwd text, p_env jsonb, p_max_duration interval, p_box_checked boolean, OUT outcome text, OUT run_id uuid) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION boxrun.attach_box(conversation_id uuid, box_id text, principal jsonb) RETURNS boxrun.attached_box
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION boxrun.attach_box(conversation_id uuid, box_id text, principal jsonb) IS 'Attaches a box to a conversation, which is made where there is none';

CREATE FUNCTION boxrun.cancel_run(conversation_id uuid, run_id uuid, principal jsonb) RETURNS boxrun.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION boxrun.cancel_run(conversation_id uuid, run_id uuid, principal jsonb) IS 'Asks a run to end, inside the caller''s transaction; a terminal run stays as it is';

CREATE FUNCTION boxrun.check_box_id(p_box_id text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
begin
    if p_box_id is null or p_box_id !~ '^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$' then
        perform boxrun.refuse('invalid_box_id', format('%s is no box id.', coalesce(quote_literal(p_box_id), 'null')),
            'A box id is bx_ and eight characters of 23456789abcdefghjkmnpqrstuvwxyz, for example bx_8bhkse3n.');
    end if;
end
$_$;

CREATE FUNCTION boxrun.check_conversation_id(p_conversation_id uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_conversation_id is null then
        perform boxrun.refuse('invalid_request', 'conversation_id: it is null', 'Name a conversation by its UUID.');
    end if;
end
$$;

CREATE FUNCTION boxrun.check_new_run(p_command text, p_idempotency_key text, p_principal jsonb, p_cwd text, p_env jsonb, p_max_duration_seconds integer) RETURNS interval
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET standard_conforming_strings TO 'on'
    AS $_$
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
$_$;

CREATE FUNCTION boxrun.check_principal(p_principal jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION boxrun.commit_durably() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- Until the end of the transaction; the session's own value comes back by itself.
    perform set_config('synchronous_commit', 'on', true);
    return null;
end
$$;

CREATE FUNCTION boxrun.detach_box(conversation_id uuid, box_id text, principal jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION boxrun.detach_box(conversation_id uuid, box_id text, principal jsonb) IS 'Detaches a box; refused while a run is active on it';

CREATE FUNCTION boxrun.enqueue_webhook_deliveries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into boxrun.webhook_deliveries (webhook_id, run_id)
    select w.id, new.id
      from boxrun.conversations c
      join boxrun.webhooks w on w.principal_type = c.principal_type and w.principal_id = c.principal_id
     where c.id = new.conversation_id and w.disabled_at is null
       for key share of w;
    if found then
        perform pg_notify('boxrun_jobs', 'webhook');
    end if;
    return null;
end
$$;

CREATE FUNCTION boxrun.erase_run_secrets() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    delete from boxrun.run_secrets s where s.run_id = new.id;
    return null;
end
$$;

CREATE FUNCTION boxrun.get_run(conversation_id uuid, run_id uuid) RETURNS boxrun.run
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return boxrun.shown_run(get_run.conversation_id, get_run.run_id);
end
$$;

COMMENT ON FUNCTION boxrun.get_run(conversation_id uuid, run_id uuid) IS 'One run of a conversation';

CREATE FUNCTION boxrun.guard_run() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION boxrun.is_terminal(state text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select state in ('completed', 'failed', 'cancelled', 'timed_out', 'lost')
$$;

CREATE FUNCTION boxrun.list_runs(conversation_id uuid, state text DEFAULT NULL::text, box_id text DEFAULT NULL::text, idempotency_key text DEFAULT NULL::text, "limit" integer DEFAULT 50, after uuid DEFAULT NULL::uuid) RETURNS SETOF boxrun.run
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION boxrun.list_runs(conversation_id uuid, state text, box_id text, idempotency_key text, "limit" integer, after uuid) IS 'The runs of a conversation, newest first';

CREATE FUNCTION boxrun.mask(p_text text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET standard_conforming_strings TO 'on'
    AS $$
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

CREATE FUNCTION boxrun.new_run_id() RETURNS uuid
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
        52, 1), 53, 1), 'hex')::uuid
$$;

CREATE FUNCTION boxrun.notify_job() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform pg_notify('boxrun_jobs', new.kind);
    return null;
end
$$;

CREATE FUNCTION boxrun.notify_orders() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform pg_notify('boxrun_jobs', 'orders');
    return null;
end
$$;

CREATE FUNCTION boxrun.notify_run_state() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform pg_notify('boxrun_runs', json_build_object('run_id', new.id, 'state', new.state)::text);
    return null;
end
$$;

CREATE FUNCTION boxrun.read_output(conversation_id uuid, run_id uuid, from_offset bigint DEFAULT 0) RETURNS boxrun.output
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION boxrun.read_output(conversation_id uuid, run_id uuid, from_offset bigint) IS 'What is kept of a run''s output from a byte on';

CREATE FUNCTION boxrun.refuse(p_code text, p_problem text, p_remedy text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION boxrun.request_cancel(p_run_id uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION boxrun.run_directory(principal_id text, run_id uuid) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
    select '$HOME/.openagents/box-runs/users/' || coalesce(
        (select string_agg(case when chr(b) ~ '[A-Za-z0-9_-]' and b < 128 then chr(b) else '-' end, '' order by i)
           from (select i, get_byte(convert_to(principal_id, 'UTF8'), i) as b
                   from generate_series(0, least(octet_length(convert_to(principal_id, 'UTF8')), 64) - 1) as i) bytes
          where b <> 0),
        'unknown') || '/' || run_id::text
$_$;

CREATE FUNCTION boxrun.shown_run(p_conversation_id uuid, p_run_id uuid) RETURNS boxrun.run
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION boxrun.start_run(conversation_id uuid, box_id text, principal jsonb, command text, idempotency_key text, max_duration_seconds integer DEFAULT NULL::integer, cwd text DEFAULT NULL::text, env jsonb DEFAULT '{}'::jsonb) RETURNS boxrun.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION boxrun.start_run(conversation_id uuid, box_id text, principal jsonb, command text, idempotency_key text, max_duration_seconds integer, cwd text, env jsonb) IS 'Admits a run inside the caller''s transaction; an exact repeat returns the run there is';

CREATE FUNCTION boxrun.text_from_byte(p_text text, p_skip bigint) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE TABLE boxrun.api_tokens (
    id uuid NOT NULL,
    token_sha256 bytea NOT NULL,
    principal_type text NOT NULL,
    principal_id text NOT NULL,
    scopes text[] NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    inserted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT api_tokens_principal_id_length CHECK ((octet_length(principal_id) <= 256)),
    CONSTRAINT api_tokens_principal_type_length CHECK (((octet_length(principal_type) >= 1) AND (octet_length(principal_type) <= 64))),
    CONSTRAINT api_tokens_scopes_known CHECK ((scopes <@ ARRAY['runs:read'::text, 'runs:write'::text, 'boxes:write'::text, 'act-as'::text, 'metrics'::text, 'admin'::text])),
    CONSTRAINT api_tokens_sha256_length CHECK ((octet_length(token_sha256) = 32))
);

CREATE TABLE boxrun.boxes (
    id text NOT NULL,
    conversation_id uuid,
    attached_at timestamp with time zone,
    inserted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT boxes_id_format CHECK ((id ~ '^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$'::text))
);

CREATE TABLE boxrun.conversations (
    id uuid NOT NULL,
    principal_type text NOT NULL,
    principal_id text NOT NULL,
    inserted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT conversations_principal_id_length CHECK ((octet_length(principal_id) <= 256)),
    CONSTRAINT conversations_principal_type_length CHECK (((octet_length(principal_type) >= 1) AND (octet_length(principal_type) <= 64)))
);

CREATE TABLE boxrun.jobs (
    run_id uuid NOT NULL,
    kind text NOT NULL,
    due_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lease uuid,
    lease_until timestamp with time zone,
    leased_by text,
    claimable_at timestamp with time zone GENERATED ALWAYS AS (GREATEST(due_at, lease_until)) STORED NOT NULL,
    urgent boolean DEFAULT false NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    last_error text,
    last_error_code text,
    last_seen_at timestamp with time zone,
    poll_max_bytes bigint,
    inserted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    despite_pause boolean DEFAULT false NOT NULL,
    CONSTRAINT jobs_attempts_not_negative CHECK ((attempts >= 0)),
    CONSTRAINT jobs_kind_known CHECK ((kind = ANY (ARRAY['start'::text, 'poll'::text, 'stop'::text, 'cleanup'::text]))),
    CONSTRAINT jobs_lease_whole CHECK ((((lease IS NULL) = (lease_until IS NULL)) AND ((lease IS NULL) = (leased_by IS NULL))))
);

COMMENT ON TABLE boxrun.jobs IS 'The one driving job of a run: start, poll, stop, cleanup. Rows may be deleted: reconcile restores those of live runs';

COMMENT ON COLUMN boxrun.jobs.despite_pause IS 'Claimable also while its kind is paused';

CREATE TABLE boxrun.kind_pauses (
    kind text NOT NULL,
    paused_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    paused_by text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT kind_pauses_kind_may_rest CHECK ((kind = ANY (ARRAY['start'::text, 'poll'::text, 'cleanup'::text]))),
    CONSTRAINT kind_pauses_reason_length CHECK ((((octet_length(reason) >= 1) AND (octet_length(reason) <= 1000)) AND (reason ~ '[^[:space:]]'::text)))
);

COMMENT ON TABLE boxrun.kind_pauses IS 'Kinds of jobs that no worker claims; a row may be deleted: then the kind goes on';

CREATE TABLE boxrun.provider (
    only_row boolean DEFAULT true NOT NULL,
    origin text NOT NULL,
    requests_held_until timestamp with time zone,
    starts_held_until timestamp with time zone,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT provider_only_row CHECK (only_row)
);

CREATE TABLE boxrun.run_events (
    id bigint NOT NULL,
    run_id uuid NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    event text NOT NULL,
    worker text,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT run_events_event_format CHECK ((event ~ '^[a-z_]{1,64}$'::text))
);

ALTER TABLE boxrun.run_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME boxrun.run_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE boxrun.run_output (
    run_id uuid NOT NULL,
    start_offset bigint NOT NULL,
    text text NOT NULL,
    CONSTRAINT run_output_not_empty CHECK ((octet_length(text) > 0))
);

CREATE TABLE boxrun.run_secrets (
    run_id uuid NOT NULL,
    key_id text NOT NULL,
    nonce bytea NOT NULL,
    sealed bytea NOT NULL,
    CONSTRAINT run_secrets_nonce_length CHECK ((octet_length(nonce) = 24))
);

CREATE TABLE boxrun.run_tickets (
    ticket_sha256 bytea NOT NULL,
    run_id uuid NOT NULL,
    token_id uuid,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT run_tickets_sha256_length CHECK ((octet_length(ticket_sha256) = 32))
);

CREATE TABLE boxrun.runs (
    id uuid NOT NULL,
    conversation_id uuid NOT NULL,
    box_id text NOT NULL,
    principal_type text NOT NULL,
    principal_id text,
    command text NOT NULL,
    idempotency_key text NOT NULL,
    cwd text,
    env jsonb DEFAULT '{}'::jsonb NOT NULL,
    run_directory text NOT NULL,
    state text DEFAULT 'admitted'::text NOT NULL,
    exit_status smallint,
    timed_out boolean DEFAULT false NOT NULL,
    failure_reason text,
    pid bigint,
    log_offset bigint DEFAULT 0 NOT NULL,
    final_log_size bigint,
    last_output_offset bigint DEFAULT 0 NOT NULL,
    output_base_offset bigint DEFAULT 0 NOT NULL,
    box_checked_at timestamp with time zone,
    admitted_at timestamp with time zone NOT NULL,
    dispatch_attempted_at timestamp with time zone,
    probe_attempted_at timestamp with time zone,
    dispatched_at timestamp with time zone,
    started_at timestamp with time zone,
    exit_learnt_at timestamp with time zone,
    progressed_at timestamp with time zone,
    finished_at timestamp with time zone,
    cancellation_requested_at timestamp with time zone,
    cancellation_effective_at timestamp with time zone,
    deadline_at timestamp with time zone NOT NULL,
    end_verified_at timestamp with time zone,
    cleanup_given_up_at timestamp with time zone,
    directory_removed_at timestamp with time zone,
    inserted_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    log_carried text DEFAULT ''::text NOT NULL,
    log_epoch bigint DEFAULT 0 NOT NULL,
    has_secrets boolean DEFAULT false NOT NULL,
    CONSTRAINT runs_cancellation_ordered CHECK ((cancellation_requested_at <= cancellation_effective_at)),
    CONSTRAINT runs_cancelled_has_times CHECK (((state <> 'cancelled'::text) OR ((cancellation_requested_at IS NOT NULL) AND (cancellation_effective_at IS NOT NULL)))),
    CONSTRAINT runs_command_length CHECK ((((octet_length(command) >= 1) AND (octet_length(command) <= 8000)) AND (command ~ '[^[:space:]]'::text))),
    CONSTRAINT runs_completed_exits_zero CHECK (((state <> 'completed'::text) OR ((exit_status = 0) AND (exit_status IS NOT NULL) AND (failure_reason IS NULL)))),
    CONSTRAINT runs_dispatched_after_claim CHECK (((dispatched_at IS NULL) OR (dispatch_attempted_at IS NOT NULL))),
    CONSTRAINT runs_env_is_map CHECK ((jsonb_typeof(env) = 'object'::text)),
    CONSTRAINT runs_exit_learnt_at_known CHECK (((exit_learnt_at IS NULL) = (exit_status IS NULL))),
    CONSTRAINT runs_exit_status_range CHECK (((exit_status >= 0) AND (exit_status <= 255))),
    CONSTRAINT runs_failed_says_why CHECK (((state <> 'failed'::text) OR ((exit_status <> 0) AND (exit_status IS NOT NULL)) OR ((exit_status IS NULL) AND (failure_reason IS NOT NULL)))),
    CONSTRAINT runs_failure_reason_format CHECK ((failure_reason ~ '^[a-z_]{1,64}$'::text)),
    CONSTRAINT runs_finished_iff_terminal CHECK (((finished_at IS NOT NULL) = (state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text, 'lost'::text])))),
    CONSTRAINT runs_idempotency_key_length CHECK (((octet_length(idempotency_key) >= 1) AND (octet_length(idempotency_key) <= 256))),
    CONSTRAINT runs_log_carried_format CHECK ((log_carried ~ '^[a-z0-9_ ]{0,100}$'::text)),
    CONSTRAINT runs_lost_says_why CHECK (((state <> ALL (ARRAY['lost'::text, 'timed_out'::text])) OR (failure_reason IS NOT NULL))),
    CONSTRAINT runs_offsets_ordered CHECK (((log_offset >= 0) AND (output_base_offset >= 0) AND (output_base_offset <= last_output_offset))),
    CONSTRAINT runs_pid_range CHECK ((pid > 1)),
    CONSTRAINT runs_state_known CHECK ((state = ANY (ARRAY['admitted'::text, 'dispatched'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text, 'lost'::text]))),
    CONSTRAINT runs_timed_out_iff_state CHECK ((timed_out = (state = 'timed_out'::text)))
);

COMMENT ON TABLE boxrun.runs IS 'One command on one box: the durable record';

COMMENT ON COLUMN boxrun.runs.log_carried IS 'What came before log_offset, in a few words: a letter, a URL, a match that is being dropped. Never a piece of the log; empty: a text begins';

COMMENT ON COLUMN boxrun.runs.log_epoch IS 'How often the log shrank or was replaced, and was read again from its start';

COMMENT ON COLUMN boxrun.runs.has_secrets IS 'boxrun.run_secrets has, or had, a row for it: its output is redacted by it';

CREATE TABLE boxrun.settings (
    only_row boolean DEFAULT true NOT NULL,
    max_duration_seconds integer DEFAULT 1800 NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT settings_max_duration_seconds_range CHECK (((max_duration_seconds >= 1) AND (max_duration_seconds <= 31536000))),
    CONSTRAINT settings_only_row CHECK (only_row)
);

CREATE VIEW boxrun.shown_runs AS
 SELECT r.id,
    r.conversation_id,
    r.box_id,
    jsonb_build_object('type', r.principal_type, 'id', COALESCE(r.principal_id, ''::text)) AS principal,
    r.idempotency_key,
    boxrun.mask(r.command) AS command,
    r.cwd,
    ( SELECT COALESCE(jsonb_object_agg(e.key, boxrun.mask(e.value)), '{}'::jsonb) AS "coalesce"
           FROM jsonb_each_text(r.env) e(key, value)) AS env,
    r.state,
        CASE
            WHEN boxrun.is_terminal(r.state) THEN r.exit_status
            ELSE NULL::smallint
        END AS exit_status,
    r.timed_out,
    r.last_output_offset AS output_offset,
    r.output_base_offset,
    r.failure_reason,
    r.admitted_at,
    r.dispatched_at,
    r.started_at,
    r.finished_at,
    r.deadline_at,
    r.cancellation_requested_at,
    r.cancellation_effective_at,
    j.last_seen_at,
        CASE
            WHEN (j.kind = ANY (ARRAY['start'::text, 'poll'::text])) THEN j.due_at
            ELSE NULL::timestamp with time zone
        END AS next_poll_at,
    j.attempts,
    boxrun.mask(j.last_error) AS last_error,
    j.leased_by AS worker
   FROM (boxrun.runs r
     LEFT JOIN boxrun.jobs j ON ((j.run_id = r.id)));

CREATE TABLE boxrun.webhook_deliveries (
    id uuid DEFAULT boxrun.new_run_id() NOT NULL,
    webhook_id uuid NOT NULL,
    run_id uuid NOT NULL,
    state text DEFAULT 'pending'::text NOT NULL,
    due_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lease uuid,
    lease_until timestamp with time zone,
    leased_by text,
    claimable_at timestamp with time zone GENERATED ALWAYS AS (GREATEST(due_at, lease_until)) STORED NOT NULL,
    urgent boolean DEFAULT false NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    attempted_at timestamp with time zone,
    last_status smallint,
    last_error_code text,
    last_error text,
    ended_at timestamp with time zone,
    inserted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT webhook_deliveries_attempts_not_negative CHECK ((attempts >= 0)),
    CONSTRAINT webhook_deliveries_ended_iff_state CHECK (((ended_at IS NOT NULL) = (state <> 'pending'::text))),
    CONSTRAINT webhook_deliveries_failed_says_why CHECK (((state <> 'failed'::text) OR (last_error_code IS NOT NULL))),
    CONSTRAINT webhook_deliveries_last_error_code_format CHECK ((last_error_code ~ '^[a-z_]{1,64}$'::text)),
    CONSTRAINT webhook_deliveries_last_status_range CHECK (((last_status >= 100) AND (last_status <= 999))),
    CONSTRAINT webhook_deliveries_lease_whole CHECK ((((lease IS NULL) = (lease_until IS NULL)) AND ((lease IS NULL) = (leased_by IS NULL)))),
    CONSTRAINT webhook_deliveries_leased_while_pending CHECK (((lease IS NULL) OR (state = 'pending'::text))),
    CONSTRAINT webhook_deliveries_state_known CHECK ((state = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text])))
);

COMMENT ON TABLE boxrun.webhook_deliveries IS 'One event for one webhook: run.finished. The body is made of the run, which changes no more';

COMMENT ON COLUMN boxrun.webhook_deliveries.id IS 'The header webhook-id: the same at each attempt. Ordered by time';

COMMENT ON COLUMN boxrun.webhook_deliveries.state IS 'pending: waits or is in hand; delivered: the receiver answered 2xx; failed: given up';

COMMENT ON COLUMN boxrun.webhook_deliveries.due_at IS 'When it is to be attempted, while it is pending';

COMMENT ON COLUMN boxrun.webhook_deliveries.lease IS 'Held by whoever attempts it; fresh at each claim';

COMMENT ON COLUMN boxrun.webhook_deliveries.lease_until IS 'Then anybody may claim it again';

COMMENT ON COLUMN boxrun.webhook_deliveries.leased_by IS 'The worker, for people; the lease alone decides';

COMMENT ON COLUMN boxrun.webhook_deliveries.claimable_at IS 'When it may be claimed: due, and not leased';

COMMENT ON COLUMN boxrun.webhook_deliveries.urgent IS 'Asked for again while leased: the owner''s finish makes it due now';

COMMENT ON COLUMN boxrun.webhook_deliveries.attempts IS 'Attempts that came to an end since it was made or asked for again';

COMMENT ON COLUMN boxrun.webhook_deliveries.attempted_at IS 'When the last attempt came to an end';

COMMENT ON COLUMN boxrun.webhook_deliveries.last_status IS 'The HTTP status of the last attempt; null: none came';

COMMENT ON COLUMN boxrun.webhook_deliveries.last_error_code IS 'Why the last attempt failed: a stable code';

COMMENT ON COLUMN boxrun.webhook_deliveries.last_error IS 'The same for people; never with the URL';

COMMENT ON COLUMN boxrun.webhook_deliveries.ended_at IS 'When it was delivered or given up; removed 30 days later';

CREATE TABLE boxrun.webhooks (
    id uuid NOT NULL,
    principal_type text NOT NULL,
    principal_id text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    key_id text NOT NULL,
    nonce bytea NOT NULL,
    sealed bytea NOT NULL,
    disabled_at timestamp with time zone,
    inserted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT webhooks_name_format CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'::text)),
    CONSTRAINT webhooks_nonce_length CHECK ((octet_length(nonce) = 24)),
    CONSTRAINT webhooks_principal_id_length CHECK ((octet_length(principal_id) <= 256)),
    CONSTRAINT webhooks_principal_type_length CHECK (((octet_length(principal_type) >= 1) AND (octet_length(principal_type) <= 64))),
    CONSTRAINT webhooks_url_format CHECK (((octet_length(url) <= 2048) AND (url ~* '^https?://[!-~]+$'::text)))
);

COMMENT ON TABLE boxrun.webhooks IS 'Where a principal is told that a run of its conversations has ended';

COMMENT ON COLUMN boxrun.webhooks.principal_type IS 'Whose: with principal_id the owner of the conversations whose runs are told';

COMMENT ON COLUMN boxrun.webhooks.name IS 'Chosen by the principal, unique among its webhooks';

COMMENT ON COLUMN boxrun.webhooks.url IS 'As it was given; its query may hold a secret of the receiver, and is shown to nobody';

COMMENT ON COLUMN boxrun.webhooks.key_id IS 'Which of BOXRUN_SECRET_KEYS sealed the signing secret';

COMMENT ON COLUMN boxrun.webhooks.nonce IS 'Of the sealed signing secret';

COMMENT ON COLUMN boxrun.webhooks.sealed IS 'The signing secret: XChaCha20-Poly1305, bound to the webhook''s id';

COMMENT ON COLUMN boxrun.webhooks.disabled_at IS 'The receiver answered 410 Gone: nothing is sent any more until the webhook is put again';

COMMENT ON COLUMN boxrun.webhooks.updated_at IS 'When it was last put or disabled';

CREATE TABLE boxrun.workers (
    id text NOT NULL,
    host text NOT NULL,
    version text NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    stopping boolean DEFAULT false NOT NULL,
    drain_requested_at timestamp with time zone
);

COMMENT ON COLUMN boxrun.workers.drain_requested_at IS 'The worker claims no more from here on, and ends once it has nothing in hand';

ALTER TABLE ONLY boxrun.api_tokens
    ADD CONSTRAINT api_tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY boxrun.api_tokens
    ADD CONSTRAINT api_tokens_token_sha256_key UNIQUE (token_sha256);

ALTER TABLE ONLY boxrun.boxes
    ADD CONSTRAINT boxes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY boxrun.conversations
    ADD CONSTRAINT conversations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY boxrun.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (run_id);

ALTER TABLE ONLY boxrun.kind_pauses
    ADD CONSTRAINT kind_pauses_pkey PRIMARY KEY (kind);

ALTER TABLE ONLY boxrun.provider
    ADD CONSTRAINT provider_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY boxrun.run_events
    ADD CONSTRAINT run_events_pkey PRIMARY KEY (id);

ALTER TABLE ONLY boxrun.run_output
    ADD CONSTRAINT run_output_pkey PRIMARY KEY (run_id, start_offset);

ALTER TABLE ONLY boxrun.run_secrets
    ADD CONSTRAINT run_secrets_pkey PRIMARY KEY (run_id);

ALTER TABLE ONLY boxrun.run_tickets
    ADD CONSTRAINT run_tickets_pkey PRIMARY KEY (ticket_sha256);

ALTER TABLE ONLY boxrun.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY boxrun.settings
    ADD CONSTRAINT settings_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY boxrun.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_one_per_run UNIQUE (webhook_id, run_id);

ALTER TABLE ONLY boxrun.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (id);

ALTER TABLE ONLY boxrun.webhooks
    ADD CONSTRAINT webhooks_one_name_per_principal UNIQUE (principal_type, principal_id, name);

ALTER TABLE ONLY boxrun.webhooks
    ADD CONSTRAINT webhooks_pkey PRIMARY KEY (id);

ALTER TABLE ONLY boxrun.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);

CREATE INDEX boxes_conversation ON boxrun.boxes USING btree (conversation_id);

CREATE INDEX jobs_claimable ON boxrun.jobs USING btree (kind, claimable_at);

CREATE INDEX jobs_claimable_despite_pause ON boxrun.jobs USING btree (kind, claimable_at) WHERE despite_pause;

CREATE INDEX run_events_of_run ON boxrun.run_events USING btree (run_id, id);

CREATE INDEX run_tickets_expired ON boxrun.run_tickets USING btree (expires_at);

CREATE INDEX run_tickets_of_run ON boxrun.run_tickets USING btree (run_id);

CREATE INDEX run_tickets_of_token ON boxrun.run_tickets USING btree (token_id);

CREATE INDEX runs_active_by_deadline ON boxrun.runs USING btree (deadline_at) WHERE (state = ANY (ARRAY['admitted'::text, 'dispatched'::text, 'running'::text]));

CREATE INDEX runs_leftovers ON boxrun.runs USING btree (box_id, id) WHERE ((dispatch_attempted_at IS NOT NULL) AND (directory_removed_at IS NULL) AND (state <> ALL (ARRAY['admitted'::text, 'dispatched'::text, 'running'::text])));

CREATE INDEX runs_newest ON boxrun.runs USING btree (admitted_at DESC, id DESC);

CREATE INDEX runs_newest_of_conversation ON boxrun.runs USING btree (conversation_id, admitted_at DESC, id DESC);

CREATE UNIQUE INDEX runs_one_active_per_box ON boxrun.runs USING btree (box_id) WHERE (state = ANY (ARRAY['admitted'::text, 'dispatched'::text, 'running'::text]));

CREATE UNIQUE INDEX runs_one_key_per_conversation ON boxrun.runs USING btree (conversation_id, idempotency_key);

CREATE INDEX runs_unverified_end ON boxrun.runs USING btree (box_id) WHERE ((state = ANY (ARRAY['cancelled'::text, 'timed_out'::text, 'lost'::text])) AND (end_verified_at IS NULL) AND (dispatch_attempted_at IS NOT NULL));

CREATE INDEX webhook_deliveries_claimable ON boxrun.webhook_deliveries USING btree (claimable_at) WHERE (state = 'pending'::text);

CREATE INDEX webhook_deliveries_ended ON boxrun.webhook_deliveries USING btree (ended_at) WHERE (ended_at IS NOT NULL);

CREATE INDEX webhook_deliveries_leased ON boxrun.webhook_deliveries USING btree (webhook_id, lease_until) WHERE (lease IS NOT NULL);

CREATE INDEX webhook_deliveries_newest ON boxrun.webhook_deliveries USING btree (webhook_id, id DESC);

CREATE INDEX webhook_deliveries_of_run ON boxrun.webhook_deliveries USING btree (run_id);

CREATE TRIGGER commit_durably BEFORE INSERT OR DELETE OR UPDATE ON boxrun.api_tokens FOR EACH STATEMENT WHEN ((current_setting('synchronous_commit'::text) = 'off'::text)) EXECUTE FUNCTION boxrun.commit_durably();

CREATE TRIGGER commit_durably BEFORE INSERT OR DELETE OR UPDATE ON boxrun.boxes FOR EACH STATEMENT WHEN ((current_setting('synchronous_commit'::text) = 'off'::text)) EXECUTE FUNCTION boxrun.commit_durably();

CREATE TRIGGER commit_durably BEFORE INSERT OR DELETE OR UPDATE ON boxrun.conversations FOR EACH STATEMENT WHEN ((current_setting('synchronous_commit'::text) = 'off'::text)) EXECUTE FUNCTION boxrun.commit_durably();

CREATE TRIGGER commit_durably BEFORE INSERT OR DELETE OR UPDATE ON boxrun.kind_pauses FOR EACH STATEMENT WHEN ((current_setting('synchronous_commit'::text) = 'off'::text)) EXECUTE FUNCTION boxrun.commit_durably();

CREATE TRIGGER commit_durably BEFORE INSERT OR DELETE OR UPDATE ON boxrun.runs FOR EACH STATEMENT WHEN ((current_setting('synchronous_commit'::text) = 'off'::text)) EXECUTE FUNCTION boxrun.commit_durably();

CREATE TRIGGER commit_durably BEFORE INSERT OR DELETE OR UPDATE ON boxrun.webhook_deliveries FOR EACH STATEMENT WHEN ((current_setting('synchronous_commit'::text) = 'off'::text)) EXECUTE FUNCTION boxrun.commit_durably();

CREATE TRIGGER commit_durably BEFORE INSERT OR DELETE OR UPDATE ON boxrun.webhooks FOR EACH STATEMENT WHEN ((current_setting('synchronous_commit'::text) = 'off'::text)) EXECUTE FUNCTION boxrun.commit_durably();

CREATE TRIGGER enqueue_webhook_deliveries AFTER UPDATE OF state ON boxrun.runs FOR EACH ROW WHEN ((boxrun.is_terminal(new.state) AND (NOT boxrun.is_terminal(old.state)))) EXECUTE FUNCTION boxrun.enqueue_webhook_deliveries();

CREATE TRIGGER erase_run_secrets AFTER UPDATE OF state ON boxrun.runs FOR EACH ROW WHEN ((new.has_secrets AND boxrun.is_terminal(new.state))) EXECUTE FUNCTION boxrun.erase_run_secrets();

CREATE TRIGGER guard_run BEFORE UPDATE ON boxrun.runs FOR EACH ROW EXECUTE FUNCTION boxrun.guard_run();

CREATE TRIGGER notify_drain AFTER UPDATE OF drain_requested_at ON boxrun.workers FOR EACH ROW WHEN ((new.drain_requested_at IS DISTINCT FROM old.drain_requested_at)) EXECUTE FUNCTION boxrun.notify_orders();

CREATE TRIGGER notify_new_job AFTER INSERT ON boxrun.jobs FOR EACH ROW EXECUTE FUNCTION boxrun.notify_job();

CREATE TRIGGER notify_pause AFTER INSERT OR DELETE OR UPDATE ON boxrun.kind_pauses FOR EACH STATEMENT EXECUTE FUNCTION boxrun.notify_orders();

CREATE TRIGGER notify_run_admitted AFTER INSERT ON boxrun.runs FOR EACH ROW EXECUTE FUNCTION boxrun.notify_run_state();

CREATE TRIGGER notify_run_state AFTER UPDATE OF state ON boxrun.runs FOR EACH ROW WHEN ((old.state IS DISTINCT FROM new.state)) EXECUTE FUNCTION boxrun.notify_run_state();

ALTER TABLE ONLY boxrun.boxes
    ADD CONSTRAINT boxes_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES boxrun.conversations(id);

ALTER TABLE ONLY boxrun.jobs
    ADD CONSTRAINT jobs_run_id_fkey FOREIGN KEY (run_id) REFERENCES boxrun.runs(id) ON DELETE CASCADE;

ALTER TABLE ONLY boxrun.run_events
    ADD CONSTRAINT run_events_run_id_fkey FOREIGN KEY (run_id) REFERENCES boxrun.runs(id) ON DELETE CASCADE;

ALTER TABLE ONLY boxrun.run_output
    ADD CONSTRAINT run_output_run_id_fkey FOREIGN KEY (run_id) REFERENCES boxrun.runs(id) ON DELETE CASCADE;

ALTER TABLE ONLY boxrun.run_secrets
    ADD CONSTRAINT run_secrets_run_id_fkey FOREIGN KEY (run_id) REFERENCES boxrun.runs(id) ON DELETE CASCADE;

ALTER TABLE ONLY boxrun.run_tickets
    ADD CONSTRAINT run_tickets_run_id_fkey FOREIGN KEY (run_id) REFERENCES boxrun.runs(id) ON DELETE CASCADE;

ALTER TABLE ONLY boxrun.run_tickets
    ADD CONSTRAINT run_tickets_token_id_fkey FOREIGN KEY (token_id) REFERENCES boxrun.api_tokens(id) ON DELETE CASCADE;

ALTER TABLE ONLY boxrun.runs
    ADD CONSTRAINT runs_box_id_fkey FOREIGN KEY (box_id) REFERENCES boxrun.boxes(id);

ALTER TABLE ONLY boxrun.runs
    ADD CONSTRAINT runs_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES boxrun.conversations(id);

ALTER TABLE ONLY boxrun.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_run_id_fkey FOREIGN KEY (run_id) REFERENCES boxrun.runs(id) ON DELETE CASCADE;

ALTER TABLE ONLY boxrun.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_webhook_id_fkey FOREIGN KEY (webhook_id) REFERENCES boxrun.webhooks(id) ON DELETE CASCADE;

REVOKE ALL ON FUNCTION boxrun.admit_run(p_conversation_id uuid, p_box_id text, p_principal_type text, p_principal_id text, p_command text, p_idempotency_key text, p_cwd text, p_env jsonb, p_max_duration interval, p_box_checked boolean, OUT outcome text, OUT run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.attach_box(conversation_id uuid, box_id text, principal jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.cancel_run(conversation_id uuid, run_id uuid, principal jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.check_box_id(p_box_id text) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.check_conversation_id(p_conversation_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.check_new_run(p_command text, p_idempotency_key text, p_principal jsonb, p_cwd text, p_env jsonb, p_max_duration_seconds integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.check_principal(p_principal jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.commit_durably() FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.detach_box(conversation_id uuid, box_id text, principal jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.enqueue_webhook_deliveries() FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.get_run(conversation_id uuid, run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.guard_run() FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.is_terminal(state text) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.list_runs(conversation_id uuid, state text, box_id text, idempotency_key text, "limit" integer, after uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.mask(p_text text) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.new_run_id() FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.notify_job() FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.notify_run_state() FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.read_output(conversation_id uuid, run_id uuid, from_offset bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.refuse(p_code text, p_problem text, p_remedy text) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.request_cancel(p_run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.run_directory(principal_id text, run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.shown_run(p_conversation_id uuid, p_run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.start_run(conversation_id uuid, box_id text, principal jsonb, command text, idempotency_key text, max_duration_seconds integer, cwd text, env jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION boxrun.text_from_byte(p_text text, p_skip bigint) FROM PUBLIC;
