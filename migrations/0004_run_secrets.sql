-- Secrets of a run: sealed by the process that admits it, opened only to dispatch and to redact, erased when it ends.

alter table boxrun.runs add column has_secrets boolean not null default false;
comment on column boxrun.runs.has_secrets is 'boxrun.run_secrets has, or had, a row for it: its output is redacted by it';

create table boxrun.run_secrets (
    run_id uuid primary key references boxrun.runs (id) on delete cascade,
    key_id text not null,               -- which of BOXRUN_SECRET_KEYS sealed it
    nonce  bytea not null constraint run_secrets_nonce_length check (octet_length(nonce) = 24),
    sealed bytea not null               -- XChaCha20-Poly1305 over JSON, bound to the run's id
);

-- Whatever ends a run, in whatever way, takes its secrets along; also where the role that ends it may not touch them.
create function boxrun.erase_run_secrets() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from boxrun.run_secrets s where s.run_id = new.id;
    return null;
end
$$;

create trigger erase_run_secrets after update of state on boxrun.runs
    for each row when (new.has_secrets and boxrun.is_terminal(new.state)) execute function boxrun.erase_run_secrets();
