-- Webhooks: a principal's web app is told by HTTP when a run ends. The deliveries are an outbox: their rows are written in
-- the transaction that makes the run terminal, whichever way it ends, and are claimed, leased and finished as jobs are.

create table boxrun.webhooks (
    id              uuid primary key,
    principal_type  text not null constraint webhooks_principal_type_length check (octet_length(principal_type) between 1 and 64),
    principal_id    text not null constraint webhooks_principal_id_length check (octet_length(principal_id) <= 256),
    name            text not null constraint webhooks_name_format check (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    url             text not null constraint webhooks_url_format
                    check (octet_length(url) <= 2048 and url ~* '^https?://[!-~]+$'),
    key_id          text not null,
    nonce           bytea not null constraint webhooks_nonce_length check (octet_length(nonce) = 24),
    sealed          bytea not null,
    disabled_at     timestamptz,
    inserted_at     timestamptz not null default clock_timestamp(),
    updated_at      timestamptz not null default clock_timestamp(),
    constraint webhooks_one_name_per_principal unique (principal_type, principal_id, name)
);
comment on table boxrun.webhooks is 'Where a principal is told that a run of its conversations has ended';
comment on column boxrun.webhooks.principal_type is 'Whose: with principal_id the owner of the conversations whose runs are told';
comment on column boxrun.webhooks.name is 'Chosen by the principal, unique among its webhooks';
comment on column boxrun.webhooks.url is 'As it was given; its query may hold a secret of the receiver, and is shown to nobody';
comment on column boxrun.webhooks.key_id is 'Which of BOXRUN_SECRET_KEYS sealed the signing secret';
comment on column boxrun.webhooks.nonce is 'Of the sealed signing secret';
comment on column boxrun.webhooks.sealed is 'The signing secret: XChaCha20-Poly1305, bound to the webhook''s id';
comment on column boxrun.webhooks.disabled_at is 'The receiver answered 410 Gone: nothing is sent any more until the webhook is put again';
comment on column boxrun.webhooks.updated_at is 'When it was last put or disabled';

create table boxrun.webhook_deliveries (
    id              uuid primary key default boxrun.new_run_id(),
    webhook_id      uuid not null references boxrun.webhooks (id) on delete cascade,
    run_id          uuid not null references boxrun.runs (id) on delete cascade,
    state           text not null default 'pending' constraint webhook_deliveries_state_known
                    check (state in ('pending', 'delivered', 'failed')),
    due_at          timestamptz not null default clock_timestamp(),
    lease           uuid,
    lease_until     timestamptz,
    leased_by       text,
    claimable_at    timestamptz not null generated always as (greatest(due_at, lease_until)) stored,
    urgent          boolean not null default false,
    attempts        integer not null default 0 constraint webhook_deliveries_attempts_not_negative check (attempts >= 0),
    attempted_at    timestamptz,
    last_status     smallint constraint webhook_deliveries_last_status_range check (last_status between 100 and 999),
    last_error_code text constraint webhook_deliveries_last_error_code_format check (last_error_code ~ '^[a-z_]{1,64}$'),
    last_error      text,
    ended_at        timestamptz,
    inserted_at     timestamptz not null default clock_timestamp(),
    constraint webhook_deliveries_one_per_run unique (webhook_id, run_id),
    constraint webhook_deliveries_lease_whole check
        ((lease is null) = (lease_until is null) and (lease is null) = (leased_by is null)),
    constraint webhook_deliveries_ended_iff_state check ((ended_at is not null) = (state <> 'pending')),
    constraint webhook_deliveries_leased_while_pending check (lease is null or state = 'pending'),
    constraint webhook_deliveries_failed_says_why check (state <> 'failed' or last_error_code is not null)
);
comment on table boxrun.webhook_deliveries is 'One event for one webhook: run.finished. The body is made of the run, which changes no more';
comment on column boxrun.webhook_deliveries.id is 'The header webhook-id: the same at each attempt. Ordered by time';
comment on column boxrun.webhook_deliveries.state is 'pending: waits or is in hand; delivered: the receiver answered 2xx; failed: given up';
comment on column boxrun.webhook_deliveries.due_at is 'When it is to be attempted, while it is pending';
comment on column boxrun.webhook_deliveries.lease is 'Held by whoever attempts it; fresh at each claim';
comment on column boxrun.webhook_deliveries.lease_until is 'Then anybody may claim it again';
comment on column boxrun.webhook_deliveries.leased_by is 'The worker, for people; the lease alone decides';
comment on column boxrun.webhook_deliveries.claimable_at is 'When it may be claimed: due, and not leased';
comment on column boxrun.webhook_deliveries.urgent is 'Asked for again while leased: the owner''s finish makes it due now';
comment on column boxrun.webhook_deliveries.attempts is 'Attempts that came to an end since it was made or asked for again';
comment on column boxrun.webhook_deliveries.attempted_at is 'When the last attempt came to an end';
comment on column boxrun.webhook_deliveries.last_status is 'The HTTP status of the last attempt; null: none came';
comment on column boxrun.webhook_deliveries.last_error_code is 'Why the last attempt failed: a stable code';
comment on column boxrun.webhook_deliveries.last_error is 'The same for people; never with the URL';
comment on column boxrun.webhook_deliveries.ended_at is 'When it was delivered or given up; removed 30 days later';

-- The claim reads the first from its oldest row; the second counts what is in hand for one webhook.
create index webhook_deliveries_claimable on boxrun.webhook_deliveries (claimable_at) where state = 'pending';
create index webhook_deliveries_leased on boxrun.webhook_deliveries (webhook_id, lease_until) where lease is not null;
create index webhook_deliveries_newest on boxrun.webhook_deliveries (webhook_id, id desc);
create index webhook_deliveries_of_run on boxrun.webhook_deliveries (run_id);
create index webhook_deliveries_ended on boxrun.webhook_deliveries (ended_at) where ended_at is not null;

-- Whatever ends a run tells of it; also where the role that ends it may touch no delivery. Who may read a run is the owner
-- of its conversation, so that is who is told. The lock lets a webhook that is being deleted go first: without it the
-- foreign key would find it gone, and the run could not end.
create function boxrun.enqueue_webhook_deliveries() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
revoke execute on function boxrun.enqueue_webhook_deliveries from public;

create trigger enqueue_webhook_deliveries after update of state on boxrun.runs
    for each row when (boxrun.is_terminal(new.state) and not boxrun.is_terminal(old.state))
    execute function boxrun.enqueue_webhook_deliveries();

-- A secret is shown once, after it is durable; a delivery that was asked for again is not forgotten.
create trigger commit_durably before insert or update or delete on boxrun.webhooks
    for each statement when (current_setting('synchronous_commit') = 'off') execute function boxrun.commit_durably();
create trigger commit_durably before insert or update or delete on boxrun.webhook_deliveries
    for each statement when (current_setting('synchronous_commit') = 'off') execute function boxrun.commit_durably();
