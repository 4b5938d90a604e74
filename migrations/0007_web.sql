-- Tickets: what a browser follows one run with. Read-only, for minutes, and for no other run. Only the SHA-256 of a ticket
-- is kept, as of tokens.
create table boxrun.run_tickets (
    ticket_sha256 bytea primary key constraint run_tickets_sha256_length check (octet_length(ticket_sha256) = 32),
    run_id        uuid not null references boxrun.runs (id) on delete cascade,
    token_id      uuid references boxrun.api_tokens (id) on delete cascade,  -- what it was made with: revoked, the ticket ends too
    expires_at    timestamptz not null
);
create index run_tickets_expired on boxrun.run_tickets (expires_at);
create index run_tickets_of_run on boxrun.run_tickets (run_id);
create index run_tickets_of_token on boxrun.run_tickets (token_id);

alter table boxrun.api_tokens
    add constraint api_tokens_principal_type_length check (octet_length(principal_type) between 1 and 64),
    add constraint api_tokens_principal_id_length check (octet_length(principal_id) <= 256),
    add constraint api_tokens_scopes_known check
        (scopes <@ array['runs:read', 'runs:write', 'boxes:write', 'act-as', 'metrics', 'admin']);

-- A token is shown once, after it is durable; a revocation that was told holds.
create trigger commit_durably before insert or update or delete on boxrun.api_tokens
    for each statement when (current_setting('synchronous_commit') = 'off') execute function boxrun.commit_durably();

-- Detaching a box and erasing a conversation look for what ended runs may have left on a box.
create index runs_leftovers on boxrun.runs (box_id, id)
    where dispatch_attempted_at is not null and directory_removed_at is null
      and state not in ('admitted', 'dispatched', 'running');
